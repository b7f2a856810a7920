"""The KV cache as a pool of blocks.

Separate from the scheduler, so that "never more than the pool" can be tested in one place.
Must not: track which sequence holds a block; blocks are only counted.
What a block held stays in the prefix cache until the block is needed. vLLM takes free blocks in this order: those with
nothing cached, then the cached ones, longest free first, of one sequence the end first. Counting how many cached ones
were taken therefore says how much of a sequence is left: `mark` and `survivors`.
"""


class KvPool:
    """Blocks of `block_size` tokens. One of `num_blocks` is the engine's own, as in vLLM: usable = num_blocks - 1."""

    __slots__ = ("_evicted", "_sharing", "_uncached", "block_size", "shared", "usable", "used")

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.usable = num_blocks - 1
        self.used = 0
        self.shared = 0
        """Blocks among the used ones that sequences hold together: the beginning that all prompts share."""
        self._sharing = 0  # how many sequences
        self._uncached = self.usable  # free blocks with nothing cached
        self._evicted = 0  # cached blocks that were taken for something else, so far

    @property
    def free(self) -> int:
        """Blocks that no sequence holds."""
        return self.usable - self.used

    @property
    def usage(self) -> float:
        """Part of the usable pool that is held, 0..1."""
        return self.used / self.usable

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that this many tokens of one sequence need."""
        return -(-tokens // self.block_size)

    def take(self, blocks: int) -> None:
        """Hold blocks. Raises ValueError when the pool has fewer: the caller must have made room."""
        if blocks > self.usable - self.used:
            raise ValueError(f"{blocks} blocks wanted, {self.free} free")
        self.used += blocks
        self._uncached -= blocks
        if self._uncached < 0:
            self._evicted -= self._uncached
            self._uncached = 0

    def take_again(self, blocks: int) -> None:
        """Hold blocks that `survivors` said are still cached."""
        if blocks > self.free - self._uncached:
            raise ValueError(f"{blocks} cached blocks wanted, {self.free - self._uncached} free")
        self.used += blocks

    def give_back(self, blocks: int, *, cached: int = 0) -> None:
        """Free blocks, of which `cached` stay in the prefix cache. Raises ValueError for more than are held."""
        if blocks > self.used or cached > blocks:
            raise ValueError(f"{blocks} blocks given back, {cached} of them cached, {self.used} held")
        self.used -= blocks
        self._uncached += blocks - cached

    def share(self, blocks: int) -> None:
        """Let one more sequence share these blocks; those that no sequence held yet are taken."""
        if blocks > self.shared:
            self.take(blocks - self.shared)
            self.shared = blocks
        self._sharing += 1

    def unshare(self) -> None:
        """Let a sequence go that called `share`; the last one frees the blocks, which stay cached."""
        self._sharing -= 1
        if not self._sharing:
            self.give_back(self.shared, cached=self.shared)
            self.shared = 0

    @property
    def mark(self) -> int:
        """Where the cached blocks that are given back next will stand among all those ever taken for something else."""
        return self._evicted + self.free - self._uncached

    def survivors(self, cached: int, *, mark: int) -> int:
        """Return how many of the `cached` blocks freed at `mark` have not been taken since."""
        return max(0, cached - max(0, self._evicted - mark))
