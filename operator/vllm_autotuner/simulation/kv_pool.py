"""The KV cache as a pool of blocks.

Apart from the scheduler, so that "never more than the pool" can be tested and read in one place.
Must not: know which sequence holds what; blocks are counted, not named.
"""


class KvPool:
    """Blocks of `block_size` tokens. One of `num_blocks` is the engine's own, as in vLLM: usable = num_blocks - 1."""

    __slots__ = ("block_size", "usable", "used")

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.usable = num_blocks - 1
        self.used = 0

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
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
        if blocks > self.free:
            raise ValueError(f"{blocks} blocks wanted, {self.free} free")
        self.used += blocks

    def give_back(self, blocks: int) -> None:
        """Free blocks. Raises ValueError for more than are held."""
        if blocks > self.used:
            raise ValueError(f"{blocks} blocks given back, {self.used} held")
        self.used -= blocks
