"""The rules of others against worked examples of their own documentation."""

import pytest

from benchmarks.closedloop.rivals import Hpa, Keda, Saturation, Seen, TokenCapacity
from benchmarks.closedloop.scraping import Gauges


def seen(*pods: tuple[float, float], now: float = 0.0, replicas: int | None = None, ready: int | None = None) -> Seen:
    """Pods as (waiting, KV usage), scraped now."""
    gauges = {f"pod-{index}": [Gauges(now, 10.0, waiting, kv)] for index, (waiting, kv) in enumerate(pods)}
    count = len(pods) if replicas is None else replicas
    return Seen(now=now, replicas=count, ready=len(pods) if ready is None else ready, gauges=gauges)


@pytest.mark.parametrize(
    ("waiting", "wanted"),
    [
        pytest.param([10.0], 2, id="Kubernetes' own example: twice the target doubles"),
        pytest.param([5.4], 1, id="a ratio of 1.08 is within the tolerance"),
        pytest.param([5.6], 2, id="a ratio above it rounds up"),
        pytest.param([10.0, 20.0], 6, id="the average of all pods counts"),
        pytest.param([1000.0], 5, id="at most 4 pods more or the double at once"),
    ],
)
def test_hpa_scales_out(waiting: list[float], wanted: int) -> None:
    assert Hpa(target=5.0).wanted(seen(*((one, 0.1) for one in waiting))) == wanted


def test_hpa_scales_in_only_when_nothing_higher_was_recommended_for_five_minutes() -> None:
    hpa, found = Hpa(), []
    for tick in range(24):
        queue = 5.0 if tick == 0 else 0.0
        found.append(hpa.wanted(seen((queue, 0.1), (queue, 0.1), now=15.0 * tick)))
    assert found[:20] == [2] * 20
    assert found[20] == 0, "the bounds of the user are applied outside"


def test_hpa_counts_a_pod_without_metrics_as_none_on_the_way_up() -> None:
    # One of two pods reports 18: 18 / 2 pods / 5 = 1.8, so ceil(1.8 * 2) = 4 and not ceil(3.6 * 2) = 8.
    assert Hpa().wanted(seen((18.0, 0.1), replicas=2)) == 4


def test_hpa_and_keda_keep_what_is_without_any_metric() -> None:
    assert [rule.wanted(seen(replicas=3)) for rule in (Hpa(), Keda())] == [3, 3]


def test_stale_metrics_are_missing_metrics() -> None:
    old = Seen(now=140.0, replicas=3, ready=3, gauges={"pod-0": [Gauges(40.0, 1.0, 50.0, 0.1)]})
    assert Hpa().wanted(old) == 3


@pytest.mark.parametrize(
    ("waiting", "wanted"),
    [
        pytest.param([20.0], 4, id="total over threshold"),
        pytest.param([4.0, 6.0], 2, id="10 over 5 is 2: as it is"),
        pytest.param([5.0, 8.0], 3, id="13 over 5 rounds up"),
    ],
)
def test_keda_divides_the_sum(waiting: list[float], wanted: int) -> None:
    assert Keda(threshold=5.0).wanted(seen(*((one, 0.1) for one in waiting))) == wanted


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        pytest.param([(0.0, 0.75), (0.0, 0.72)], 3, id="spare KV below 0.10 of the threshold"),
        pytest.param([(0.0, 0.3), (3.0, 0.3)], 2, id="a spare queue of 3.5 suffices"),
        pytest.param([(3.0, 0.3), (3.0, 0.3)], 3, id="a spare queue of 2 does not"),
        pytest.param([(9.0, 0.3)], 2, id="nobody but saturated replicas"),
        pytest.param([(9.0, 0.3), (0.0, 0.2)], 2, id="a saturated one does not count, the other has room"),
        pytest.param([(0.0, 0.3), (0.0, 0.3), (0.0, 0.3)], 2, id="0.9 over two leaves 0.35"),
        pytest.param([(0.0, 0.36), (0.0, 0.36)], 2, id="0.72 on one would leave 0.08: stays"),
    ],
)
def test_saturation_by_its_published_thresholds(pods: list[tuple[float, float]], wanted: int) -> None:
    rule = Saturation()
    first = rule.wanted(seen(*pods))
    later = [rule.wanted(seen(*pods, now=15.0 * tick)) for tick in range(1, 18)]
    assert (later[-1] if wanted < len(pods) else first) == wanted


def test_saturation_waits_for_replicas_that_are_starting() -> None:
    assert Saturation().wanted(seen((9.0, 0.9), replicas=2, ready=1)) == 2


def test_saturation_decides_once_a_minute() -> None:
    rule = Saturation()
    assert rule.wanted(seen((0.0, 0.1))) == 1
    assert rule.wanted(seen((9.0, 0.9), now=45.0)) == 1
    assert rule.wanted(seen((9.0, 0.9), now=60.0)) == 2


def test_calibrated_keda_counts_what_runs_as_well() -> None:
    # Ten running and 6 waiting on each of two pods: 32 over a target of 8 a pod is four.
    assert Keda(threshold=8.0, running=True).wanted(seen((6.0, 0.1), (6.0, 0.1))) == 4


@pytest.mark.parametrize(
    ("kv", "waiting", "wanted"),
    [
        # Pool 10,000: k1 = 8,000. I = 100 and O = 200: N = min(8192 * 200 / 300, 32) = 32, 32 * 200 = k2 = 6,400.
        pytest.param(0.5, 0.0, 1, id="5,000 of 6,400 tokens are 78 %"),
        pytest.param(0.6, 0.0, 2, id="6,000 are more than 85 %"),
        pytest.param(0.5, 4.0, 2, id="and 4 waiting ones bring 800 more"),
    ],
)
def test_token_capacity_by_its_published_thresholds(kv: float, waiting: float, wanted: int) -> None:
    one = Gauges(0.0, 20.0, waiting, kv, prompt_tokens=1e5, generated_tokens=2e5, finished=1e3, pool_tokens=10_000)
    looked = Seen(now=0.0, replicas=1, ready=1, gauges={"pod-0": [one]})
    assert TokenCapacity(seats=32, batched_tokens=8192).wanted(looked) == wanted
