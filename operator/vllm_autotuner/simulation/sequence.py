"""A request, its sequence inside the engine, and its outcome. Values only.

Must not: decide anything; the scheduler moves sequences.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as a client sends it. What is below 0 or no number is refused by `refuse_impossible`."""

    arrival: float
    """Seconds on the engine's clock."""
    prompt_tokens: int
    max_tokens: int
    eos_after: int | None = None
    """Output tokens after which the sequence ends by itself; None when only `max_tokens` ends it (`ignore_eos`)."""
    cached_tokens: int | None = None
    """The beginning of the prompt that the prefix cache holds; None: the part that the profile says."""
    shared_tokens: int = 0
    """The beginning of the prompt that all requests to this engine share. As far as it is cached, they hold its blocks
    together; who computes it holds its own."""
    priority: int = 0
    """Lower numbers first, with that scheduling policy."""
    grammar_seconds: float = 0.0
    """How long its grammar (structured output) is compiled after its arrival; it is deferred until then."""


class RequestRefused(Exception):
    """The engine will never run this request (HTTP 400); the message says which limit it breaks."""

    def __init__(self, message: str, *, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class RequestFailed(Exception):
    """The engine failed on this request (HTTP 500); another one may go well."""


def refuse_impossible(request: Request, *, max_model_len: int) -> None:
    """Raise RequestRefused, in vLLM's words, for a request that can never run."""
    limit = max_model_len
    if request.prompt_tokens < 1 or request.max_tokens < 1:
        raise RequestRefused("a request needs at least one prompt token and one output token", parameter="max_tokens")
    if request.prompt_tokens >= limit:
        raise RequestRefused(
            f"This model's maximum context length is {limit} tokens. However, your request has "
            f"{request.prompt_tokens} input tokens. Please reduce the length of the input messages.",
            parameter="input_tokens",
        )
    if request.prompt_tokens + request.max_tokens > limit:
        raise RequestRefused(
            f"'max_tokens' or 'max_completion_tokens' is too large: {request.max_tokens}. This model's maximum "
            f"context length is {limit} tokens and your request has {request.prompt_tokens} input tokens "
            f"({request.max_tokens} > {limit} - {request.prompt_tokens}).",
            parameter="max_tokens",
        )


class FinishReason(StrEnum):
    """vLLM's own values of the `finished_reason` label that this engine can produce."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SchedulingPolicy(StrEnum):
    """vLLM's own values of `--scheduling-policy`."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class State(Enum):
    """Where a sequence is."""

    WAITING = 1
    PREFILLING = 2
    DECODING = 3
    FINISHED = 4


class Sequence:
    """A request inside the engine. Only the scheduler writes to it.

    While it decodes, it gains one token per step; so nothing is counted per step, but from the step it joined at:
    tokens held = `held_base` + steps since `joined`, tokens generated = `generated_base` + the same.
    """

    __slots__ = (
        "cached_tokens", "computed", "finish_tick", "first_scheduled", "first_token", "generated_base", "held_base",
        "identity", "joined", "last_token", "left_blocks", "left_mark", "preemptions", "ready_at", "request",
        "shared_blocks", "state", "target",
    )  # fmt: skip

    def __init__(self, request: Request, *, identity: int, cached_tokens: int) -> None:
        self.request = request
        self.identity = identity
        self.cached_tokens = cached_tokens
        """Tokens of the prompt that the prefix cache holds."""
        self.target = min(request.max_tokens, request.eos_after or request.max_tokens)
        """Output tokens at which it ends."""
        self.ready_at = request.arrival + request.grammar_seconds
        """When it waits only for a slot and blocks."""
        self.state = State.WAITING
        self.computed = 0
        """Tokens prefilled so far since the last (re)start."""
        self.held_base = 0
        self.generated_base = 0
        self.joined = 0
        self.finish_tick = 0
        self.first_scheduled: float | None = None
        self.first_token: float | None = None
        self.last_token = 0.0
        self.preemptions = 0
        self.shared_blocks = 0
        """Blocks at its beginning that it holds together with others while it runs."""
        self.left_blocks = 0
        """Its own full blocks that the prefix cache kept when it was preempted, and their place (`KvPool.mark`)."""
        self.left_mark = 0

    @property
    def rank(self) -> tuple[int, float, int]:
        """Its place under `SchedulingPolicy.PRIORITY`; the highest is preempted first."""
        return (self.request.priority, self.request.arrival, self.identity)

    @property
    def to_compute(self) -> int:
        """Tokens of the prompt and of what was generated before a preemption."""
        return self.request.prompt_tokens + self.generated_base

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ends if it is not aborted."""
        return FinishReason.LENGTH if self.target == self.request.max_tokens else FinishReason.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished request. Times in seconds on the engine's clock."""

    sequence: Sequence
    reason: FinishReason
    first_scheduled: float
    first_token: float
    finished: float
    output_tokens: int

    @property
    def ttft(self) -> float:
        """Time to first token, seconds, queue included."""
        return self.first_token - self.sequence.request.arrival

    @property
    def tpot(self) -> float:
        """Mean time per output token after the first, seconds; 0 for a single token, as vLLM reports it."""
        if self.output_tokens < 2:
            return 0.0
        return (self.finished - self.first_token) / (self.output_tokens - 1)


def goodput(outcomes: Iterable[Outcome], *, ttft: float, tpot: float, seconds: float) -> float:
    """Return requests per second that met both limits (seconds), over a window of `seconds`."""
    return sum(outcome.ttft <= ttft and outcome.tpot <= tpot for outcome in outcomes) / seconds
