"""How many sequences the KV cache holds, by its use: a prefix that all share is in it once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import engine, observation

from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.performance.kv_use import kv_bound

POOL = 200_000


def seen(
    *, running: float, taken: float, prompt: float, hits: float | None, requests: float = 100.0, pool: int | None = POOL
) -> Observation:
    """So many sequences that take so many tokens of the pool, and the mean prompt of the requests that finished."""
    lengths = Distribution(buckets={math.inf: requests}, total=prompt * requests, count=requests)
    queries = prompt * requests
    found = None if hits is None else hits * queries
    one = engine(
        running=running,
        kv=taken / POOL,
        pool=KVPool(tokens=pool),
        prefix_hits=found,
        prefix_queries=None if hits is None else queries,
    )
    return observation(one, recent_prompt_length=lengths)


def test_a_prefix_that_all_share_is_held_once() -> None:
    common, own, running = 20_000, 1_000, 10
    found = kv_bound(
        seen(running=running, taken=common + running * own, prompt=common + own, hits=20 / 21, requests=1e12)
    )
    assert found in {159, 160}, "180,000 tokens less 20,000, at 1,000 each"


def test_of_few_requests_less_is_surely_in_common() -> None:
    given = {"running": 10, "taken": 30_000, "prompt": 21_000, "hits": 20 / 21}
    plain = kv_bound(seen(**{**given, "hits": 0.0}))
    some, few = (kv_bound(seen(**given, requests=requests)) for requests in (100.0, 4.0))
    assert (plain, few, some) == (60, 60, 112)


@pytest.mark.parametrize(
    "without",
    [
        pytest.param({"hits": None}, id="no hits are exported"),
        pytest.param({"hits": 0.0}, id="nothing is found in the prefix cache"),
        pytest.param({"pool": None}, id="the size of the cache is not known"),
        pytest.param({"requests": 0.0}, id="no request has finished"),
        pytest.param({"running": 1.0, "taken": 3_000}, id="a single sequence shares with nothing"),
    ],
)
def test_without_what_tells_of_sharing_each_sequence_counts_in_full(without: dict[str, float | None]) -> None:
    given: dict[str, float | None] = {"running": 10.0, "taken": 30_000, "prompt": 21_000, "hits": 20 / 21}
    assert kv_bound(seen(**{**given, **without})) == 60  # type: ignore[arg-type]


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
    if taken >= POOL:
        return
    found = kv_bound(seen(running=running, taken=taken, prompt=prompt, hits=hits))
    assert found == kv_bound(seen(running=running, taken=taken, prompt=prompt, hits=0.0))


@given(
    running=st.integers(2, 300),
    common=st.integers(0, 50_000),
    own=st.integers(16, 4_000),
    output=st.integers(0, 2_000),
    requests=st.integers(1, 10_000),
)
def test_never_more_than_truly_fit_nor_fewer_than_without_sharing(
    running: int, common: int, own: int, output: int, requests: int
) -> None:
    taken = common + running * (own + output)
    if taken >= 0.9 * POOL:
        return
    given = {"running": float(running), "taken": taken, "prompt": common + own, "requests": float(requests)}
    plain = kv_bound(seen(**given, hits=0.0))
    found = kv_bound(seen(**given, hits=common / (common + own)))
    assert plain is not None
    assert found is not None
    assert plain <= found <= max(1, math.floor((0.9 * POOL - common) / (own + output) + 1e-6))
