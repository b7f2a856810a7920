"""Which blocks the pool takes first, and so what of a freed sequence is still in the prefix cache."""

import pytest

from vllm_autotuner.simulation.kv_pool import KvPool


def pool(*, usable: int) -> KvPool:
    return KvPool(num_blocks=usable + 1, block_size=16)


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        pytest.param(0, 3, id="nobody took a block"),
        pytest.param(5, 3, id="four were never used and one is not full: nothing cached in them, they go first"),
        pytest.param(6, 2, id="then the cached ones"),
        pytest.param(8, 0, id="until none is left"),
    ],
)
def test_blocks_with_nothing_cached_are_taken_first(taken: int, left: int) -> None:
    blocks = pool(usable=8)
    blocks.take(4)
    mark = blocks.mark
    blocks.give_back(4, cached=3)
    blocks.take(taken)
    assert blocks.survivors(3, mark=mark) == left


def test_the_sequence_that_was_freed_first_loses_its_blocks_first() -> None:
    blocks = pool(usable=6)
    blocks.take(6)
    first = blocks.mark
    blocks.give_back(3, cached=3)
    second = blocks.mark
    blocks.give_back(3, cached=3)
    blocks.take(4)
    assert (blocks.survivors(3, mark=first), blocks.survivors(3, mark=second)) == (0, 2)


def test_cached_blocks_are_held_again_without_evicting_any() -> None:
    blocks = pool(usable=4)
    blocks.take(4)
    mark = blocks.mark
    blocks.give_back(4, cached=2)
    blocks.take_again(2)
    assert (blocks.used, blocks.free) == (2, 2)
    assert blocks.survivors(2, mark=mark) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda blocks: blocks.take(3), id="more than are free"),
        pytest.param(lambda blocks: blocks.take_again(1), id="none is cached"),
        pytest.param(lambda blocks: blocks.give_back(3), id="more than are held"),
        pytest.param(lambda blocks: blocks.give_back(1, cached=2), id="more cached than given back"),
    ],
)
def test_what_cannot_be_is_an_error(wrong: object) -> None:
    blocks = pool(usable=4)
    blocks.take(2)
    assert callable(wrong)
    with pytest.raises(ValueError, match="blocks"):
        wrong(blocks)
    assert blocks.used == 2
