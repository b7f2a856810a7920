"""Request and response bodies of the OpenAI API, as far as vLLM serves and load generators use it; without HTTP.

Must not: know the engine or the network. Text is invented; only token counts are meant.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CHARACTERS_PER_TOKEN: Final = 4
"""How long a token is when a prompt comes as text: rough, as there is no tokenizer here."""
TOKENS_PER_MESSAGE: Final = 4
"""What a chat template adds to each message; rough as well."""
DEFAULT_COMPLETION_TOKENS: Final = 16
"""`max_tokens` of a completion that names none; a chat answer may fill the context instead."""


class BadBody(ValueError):
    """The body is not one that we serve (HTTP 400, or 404 for another model)."""

    def __init__(self, message: str, *, parameter: str, status: int = 400) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a body asks for."""

    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool
    ignore_eos: bool
    chat: bool
    priority: int = 0


def read_job(body: object, *, chat: bool, model_name: str, max_model_len: int) -> Job:
    """Read a body. Raises BadBody with what is wrong and what is served."""
    if not isinstance(body, Mapping):
        raise BadBody("the body must be a JSON object", parameter="body")
    if body.get("model", model_name) != model_name:
        raise BadBody(f"The model `{body['model']}` does not exist.", parameter="model", status=404)
    if body.get("n", 1) != 1:
        raise BadBody("the simulated engine serves n=1 only", parameter="n")
    prompt_tokens = _chat_tokens(body.get("messages")) if chat else _prompt_tokens(body.get("prompt"))
    default = max(1, max_model_len - prompt_tokens) if chat else DEFAULT_COMPLETION_TOKENS
    max_tokens = body.get("max_completion_tokens") if chat else None
    if max_tokens is None:
        max_tokens = body.get("max_tokens")
    if max_tokens is None:
        max_tokens = default
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
        raise BadBody("max_tokens must be an integer", parameter="max_tokens")
    priority = body.get("priority", 0)
    if not isinstance(priority, int):
        raise BadBody("priority must be an integer", parameter="priority")
    options = body.get("stream_options")
    return Job(
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        stream=bool(body.get("stream", False)),
        include_usage=isinstance(options, Mapping) and bool(options.get("include_usage", False)),
        ignore_eos=bool(body.get("ignore_eos", False)),
        chat=chat,
        priority=priority,
    )


def _text_tokens(text: str) -> int:
    return max(1, math.ceil(len(text) / CHARACTERS_PER_TOKEN))


def _prompt_tokens(prompt: object) -> int:
    match prompt:
        case str():
            return _text_tokens(prompt)
        case [str() | list() as only]:
            return _prompt_tokens(only)
        case [int(), *_] if all(isinstance(token, int) for token in prompt):
            return len(prompt)
        case _:
            raise BadBody("prompt must be one string or one list of token ids", parameter="prompt")


def _chat_tokens(messages: object) -> int:
    if not isinstance(messages, list) or not messages:
        raise BadBody("messages must be a list with at least one message", parameter="messages")
    tokens = 0
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        if not isinstance(content, str):
            raise BadBody("each message needs a text content", parameter="messages")
        tokens += _text_tokens(content) + TOKENS_PER_MESSAGE
    return tokens


def text_of(tokens: int) -> str:
    """Return something to read for this many tokens."""
    return " token" * tokens


def usage(job: Job, *, output_tokens: int) -> dict[str, int]:
    """Return the `usage` object."""
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": job.prompt_tokens + output_tokens,
    }


def answer(
    job: Job, *, identity: str, created: int, model_name: str, output_tokens: int, reason: str
) -> dict[str, Any]:
    """Return the whole answer to a request that does not stream."""
    text = text_of(output_tokens)
    content = {"message": {"role": "assistant", "content": text}} if job.chat else {"text": text}
    return {
        "id": identity,
        "object": "chat.completion" if job.chat else "text_completion",
        "created": created,
        "model": model_name,
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": reason}],
        "usage": usage(job, output_tokens=output_tokens),
    }


def chunk(
    job: Job, *, identity: str, created: int, model_name: str, new_tokens: int, reason: str | None
) -> dict[str, Any]:
    """Return one event of a stream; `reason` only in the last."""
    text = text_of(new_tokens)
    content = {"delta": {"content": text}} if job.chat else {"text": text}
    return {
        "id": identity,
        "object": "chat.completion.chunk" if job.chat else "text_completion",
        "created": created,
        "model": model_name,
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": reason}],
    }


def error(message: str, *, status: int, parameter: str | None) -> dict[str, Any]:
    """Return vLLM's error body."""
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": parameter, "code": status}}
