"""How many sequences the KV cache holds, by its use: a prefix that all share is in it once."""

import math
from bisect import bisect_left

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.builders import engine, observation

from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.performance.kv_use import kv_bound

POOL = 200_000
EDGES = [figure * 10**power for power in range(5) for figure in (1, 2, 5)]
"""As vLLM has them for lengths."""


def lengths(*prompts: float) -> Distribution:
    counts = {float(edge): float(sum(each <= edge for each in prompts)) for edge in EDGES}
    return Distribution(buckets={**counts, math.inf: float(len(prompts))}, total=sum(prompts), count=len(prompts))


def seen(
    *,
    running: float,
    taken: float,
    prompt: float,
    hits: float | None,
    pool: int | None = POOL,
    finished: tuple[float, ...] | None = None,
) -> Observation:
    """So many sequences that take so many tokens of the pool, and the prompts of the requests that finished."""
    found = lengths(*(finished or (prompt,) * 20)) if prompt else Distribution()
    queries = None if hits is None else 1e6
    one = engine(
        running=running,
        kv=taken / POOL,
        pool=KVPool(tokens=pool),
        prefix_hits=None if hits is None else hits * 1e6,
        prefix_queries=queries,
    )
    return observation(one, recent_prompt_length=found, prompt_length=found)


def test_a_prefix_that_all_share_is_held_once() -> None:
    common, own, running = 20_000, 1_000, 10
    found = kv_bound(seen(running=running, taken=common + running * own, prompt=common + own, hits=20 / 21))
    # All prompts are above 20,000: of 21,000 so much is sure.
    assert found == 145
    assert kv_bound(seen(running=running, taken=common + running * own, prompt=common + own, hits=0.0)) == 60


@pytest.mark.parametrize(
    "without",
    [
        pytest.param({"hits": None}, id="no hits are exported"),
        pytest.param({"hits": 0.0}, id="nothing is found in the prefix cache"),
        pytest.param({"pool": None}, id="the size of the cache is not known"),
        pytest.param({"prompt": 0}, id="no request has finished"),
        pytest.param({"hits": 0.3}, id="most of each prompt is computed"),
        pytest.param({"finished": (500.0, *(21_000.0,) * 9)}, id="those that run may be the short ones"),
    ],
)
def test_without_what_tells_of_sharing_each_sequence_counts_in_full(without: dict[str, float | None]) -> None:
    given: dict[str, float | None] = {"running": 10.0, "taken": 30_000, "prompt": 21_000, "hits": 20 / 21}
    assert kv_bound(seen(**{**given, **without})) == 60  # type: ignore[arg-type]


def test_few_sequences_tell_nothing_of_sharing() -> None:
    assert kv_bound(seen(running=9, taken=29_000, prompt=21_000, hits=20 / 21)) == 55


@given(
    running=st.integers(2, 300),
    prompt=st.integers(100, 20_000),
    hits=st.floats(0.01, 1.0),
    output=st.integers(0, 2_000),
)
def test_turns_of_chats_that_each_find_their_own_past_share_nothing(
    running: int, prompt: int, hits: float, output: int
) -> None:
    taken = running * (prompt + output)
    assume(taken < POOL)
    found = kv_bound(seen(running=running, taken=taken, prompt=prompt, hits=hits))
    assert found == kv_bound(seen(running=running, taken=taken, prompt=prompt, hits=0.0))


@given(
    running=st.integers(2, 300),
    common=st.integers(0, 50_000),
    own=st.integers(16, 4_000),
    output=st.integers(0, 2_000),
    hits=st.floats(0.0, 1.0),
)
def test_never_more_than_truly_fit_nor_fewer_than_without_sharing(
    running: int, common: int, own: int, output: int, hits: float
) -> None:
    taken = common + running * (own + output)
    assume(taken < 0.9 * POOL)
    prompt = common + own
    plain, found = (kv_bound(seen(running=running, taken=taken, prompt=prompt, hits=each)) for each in (0.0, hits))
    assert plain is not None
    assert found is not None
    assert plain <= found <= max(plain, math.floor((0.9 * POOL - common) / (own + output) + 1e-6))


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_the_edge_that_a_share_exceeds(values: list[int], share: float) -> None:
    edge = lengths(*map(float, values)).exceeded_by(share)
    assert sum(value > edge for value in values) >= share * len(values) - 1e-9
    following = bisect_left(EDGES, edge + 1)
    if following < len(EDGES):
        assert sum(value > EDGES[following] for value in values) < share * len(values) + 1e-9


def test_no_edge_is_exceeded_where_nothing_is_known() -> None:
    assert Distribution().exceeded_by(0.95) == 0
    assert Distribution(buckets={math.inf: 3.0}, total=3.0, count=3.0).exceeded_by(0.95) == 0
