"""What vLLM takes for a flag that is left out, where that depends on the GPU.

Separate from `flags`, which are as given. Must not: stand in for a value that is known. Defaults of CPUs differ.
"""

from typing import Final

from vllm_autotuner.engine.hardware import Gpu

__all__ = ["default_max_num_seqs"]

LARGE_GIB: Final = 70.0
"""GiB of a GPU from which vLLM's defaults are larger; not on A100. vLLM pull requests 16158 and 17885."""
OF_LARGE: Final = 1024
OF_OTHERS: Final = 256


def default_max_num_seqs(gpu: Gpu, *, step_tokens: int | None) -> int:
    """Return the max-num-seqs of a server without the flag, which is no more than its --max-num-batched-tokens.

    Worked: 1024 on H100 and H200, 256 on A100 and L40S; 512 on H100 with steps of 512 tokens.
    """
    of_gpu = OF_LARGE if gpu.memory_gib >= LARGE_GIB and "A100" not in gpu.words else OF_OTHERS
    return of_gpu if step_tokens is None else min(of_gpu, step_tokens)
