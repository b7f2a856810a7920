"""`python -I tiny_model.py FOLDER`: make a Llama with random weights and a tokenizer of random words.

Apart from `real_engine_install`, because it runs in the engine's own environment, which has torch and transformers.
Must not: import anything of the project, or download anything. The same seed gives the same model.
"""

import random
import string
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]
from tokenizers import ByteLevelBPETokenizer  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

SEED = 0
VOCABULARY = 2048
"""Upper bound of the tokenizer's training, and the size of the embedding: the load sends token ids below 2,000."""
END = "<end>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def main(folder: Path) -> None:
    """Write the model in the Hugging Face layout."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=0,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(sentences(), vocab_size=VOCABULARY, special_tokens=[END], show_progress=False)
    # The inner object is the public `tokenizers.Tokenizer`; the class above only knows how to train it.
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, bos_token=END, eos_token=END)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def sentences() -> list[str]:
    """Random words, from which the tokenizer learns about 2,000 pieces."""
    source = random.Random(SEED)
    words = ["".join(source.choices(string.ascii_lowercase, k=source.randint(2, 9))) for _ in range(4000)]
    return [" ".join(source.choices(words, k=12)) for _ in range(4000)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
