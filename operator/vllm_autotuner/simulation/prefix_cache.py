"""The prefix cache: how much of a sequence is cached and need not be computed.

Separate from the scheduler, which admits by it, and from the pool, which counts blocks without their sequences.
Must not: take blocks, or change a sequence.
"""

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.kv_pool import KvPool
from vllm_autotuner.simulation.sequence import Request, Sequence


class PrefixCache:
    """The beginnings that are cached: of prompts by what the profile or the client says, of the preempted by the pool.

    Always whole blocks, and never the last token: only a computed token yields the next one.
    """

    __slots__ = ("_config", "_pool")

    def __init__(self, config: EngineConfig, pool: KvPool) -> None:
        self._config = config
        self._pool = pool

    def known_of(self, request: Request, *, number: int) -> int:
        """Return the tokens of a prompt that are cached when it comes as the `number`-th request."""
        warm = number > self._config.cold_requests
        known = request.prompt_tokens * self._config.prefix_hit_ratio if warm else 0
        if request.cached_tokens is not None:
            known = request.cached_tokens if self._config.enable_prefix_caching else 0
        cached = int(min(known, request.prompt_tokens - 1))
        return cached - cached % self._config.block_size

    def shareable(self, sequence: Sequence) -> int:
        """Return the blocks at its beginning that it may hold together with others: cached, and the same for all."""
        return min(sequence.cached_tokens, sequence.request.shared_tokens) // self._config.block_size

    def own_left(self, sequence: Sequence) -> int:
        """Return how many blocks of its own are left of a sequence that was preempted."""
        if not sequence.left_blocks:
            return 0
        return min(
            self._pool.survivors(sequence.left_blocks, mark=sequence.left_mark),
            (sequence.to_compute - 1) // self._config.block_size - self.shareable(sequence),
        )

    def kept(self, held: int, *, shared_blocks: int) -> int:
        """Return how many own blocks stay of a sequence that held so many tokens, some of them with others."""
        return held // self._config.block_size - shared_blocks if self._config.enable_prefix_caching else 0
