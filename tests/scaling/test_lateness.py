"""First tokens that were late in bursts are remembered for longer than the bursts last."""

from datetime import timedelta

import numpy as np
import pytest
from tests.builders import NOT_MEASURED, NOW, WINDOW, latency, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import StepPoint
from vllm_autotuner.observation.observation import FirstTokens
from vllm_autotuner.scaling.lateness import late_for, missed_clearly, missed_lately, ttft_lately

MINUTES = 20


def windows(means: list[float], *, requests: list[float] | None = None) -> tuple[FirstTokens, ...]:
    """Windows of one engine, the last one now."""
    counts = requests or [100.0] * len(means)
    return tuple(
        FirstTokens(mean=mean, requests=count, time=NOW - WINDOW * back)
        for back, (mean, count) in enumerate(zip(reversed(means), reversed(counts), strict=True))
    )


def lately(*engines: tuple[FirstTokens, ...], now: float = 0.2, since: float | None = None) -> float | None:
    seen = observation(ttft=latency(now, count=100.0 if now else 0.0), first_tokens=sum(engines, ()))
    return ttft_lately(seen, targets=targets(ttft=1.0), since=since)


@pytest.mark.parametrize(
    ("means", "requests", "seconds"),
    [
        pytest.param([0.2] * 20, None, 0.2, id="always in time"),
        pytest.param([0.2, 3.0, *[0.2] * 18], [100.0, 50.0, *[100.0] * 18], 0.2, id="fewer late than may be"),
        pytest.param([0.2, 3.0, *[0.2] * 18], [100.0, 500.0, *[100.0] * 18], 3.0, id="a burst long ago"),
        pytest.param([3.0] * 8 + [0.2] * 12, None, 0.2, id="what had piled up before"),
        pytest.param([3.0] * 20, None, 0.2, id="never yet in time: the present window alone"),
    ],
)
def test_how_late(means: list[float], requests: list[float] | None, seconds: float) -> None:
    assert lately(windows(means, requests=requests)) == pytest.approx(seconds, rel=0.03)


def test_the_tail_of_the_present_window_is_that_of_all() -> None:
    """Means hide that some wait longer: 0.6 s at p95 where the mean is 0.3 makes 3 s of 1.5."""
    seen = observation(ttft=latency(0.3, tail=0.6), first_tokens=windows([0.3, 1.5, 1.5, 0.3, 0.3]))
    assert ttft_lately(seen, targets=targets(ttft=1.0), since=None) == pytest.approx(3.0, rel=0.05)


def test_one_engine_in_time_does_not_end_what_had_piled_up_on_another() -> None:
    fresh, old = windows([0.1] * 4, requests=[5.0] * 4), windows([3.0, 3.0, 0.2, 0.2])
    assert lately(fresh, old) == pytest.approx(0.2, rel=0.03)


def test_what_was_on_fewer_replicas_does_not_count() -> None:
    burst = windows([0.2] * 10 + [3.0] * 4 + [0.2] * 6)
    assert lately(burst) == pytest.approx(3.0, rel=0.03)
    assert lately(burst, since=NOW - 6 * WINDOW) == pytest.approx(0.2, rel=0.03)


def test_nobody_asks_and_nobody_knows() -> None:
    assert lately(windows([0.2] * 3), now=0.0) is None


@pytest.mark.parametrize(
    ("means", "now", "seconds"),
    [
        pytest.param([0.2] * 5, 0.2, 0.0, id="in time"),
        pytest.param([0.2] * 4 + [3.0], 3.0, WINDOW, id="since the present window"),
        pytest.param([0.2, 3.0, 3.0, 3.0], 3.0, 3 * WINDOW, id="for three windows"),
        pytest.param([3.0, 3.0, 0.2, 3.0], 3.0, WINDOW, id="what was late before it was in time is another matter"),
        pytest.param([3.0] * 4, 0.2, 0.0, id="no longer"),
        pytest.param([], 3.0, WINDOW, id="windows that nobody remembers"),
    ],
)
def test_for_how_long_they_have_been_late(means: list[float], now: float, seconds: float) -> None:
    seen = observation(ttft=latency(now), first_tokens=windows(means))
    assert late_for(seen, targets=targets(ttft=1.0)) == pytest.approx(seconds)


def test_a_rest_ends_what_was_late_before_it() -> None:
    """Nobody asked for two windows, so that nobody waited."""
    before, present = windows([3.0, 3.0, 3.0, 3.0, 3.0])[-2:], windows([3.0])
    seen = observation(ttft=latency(3.0), first_tokens=(*before, *present))
    assert late_for(seen, targets=targets(ttft=1.0)) == pytest.approx(WINDOW)


def test_nobody_knows_whether_they_are_late() -> None:
    assert late_for(observation(ttft=NOT_MEASURED), targets=targets(ttft=1.0)) == 0.0


def of_tokens(means: list[float], *, now: Distribution, ttft: Distribution | None = None) -> Case:
    """Windows of 50 ms at p95 against what was seen; first tokens are in time unless said."""
    steps = tuple(
        StepPoint(running=20.0, itl=mean, tokens=1000.0, time=NOW - WINDOW * back)
        for back, mean in enumerate(reversed(means))
    )
    seen = observation(tpot=now, itl=now, ttft=ttft or latency(0.2), steps=steps)
    return Case(observation=seen, targets=targets(tpot=0.05), knobs=EngineKnobs())


TEN_MINUTES = timedelta(minutes=10)


@pytest.mark.parametrize(
    ("late", "seconds", "missed"),
    [
        pytest.param(1, 600, False, id="half a minute of ten"),
        pytest.param(5, 600, True, id="two and a half"),
        pytest.param(1, 90, True, id="half a minute of the last one and a half"),
        pytest.param(20, 600, True, id="all the time"),
        pytest.param(0, 600, False, id="never"),
    ],
)
def test_more_tokens_were_late_lately_than_may_be(late: int, seconds: float, missed: bool) -> None:
    """54 ms at p95, 48 on average: a quarter of such a window is late."""
    case = of_tokens([0.04] * (20 - late) + [0.048] * late, now=latency(0.048, tail=0.054))
    assert missed_lately(case, over=timedelta(seconds=seconds), since=None) is missed


def test_what_was_late_on_other_replicas_says_nothing_of_these() -> None:
    case = of_tokens([0.06] * 10 + [0.04] * 10, now=latency(0.04, tail=0.045))
    assert missed_lately(case, over=TEN_MINUTES, since=None)
    assert not missed_lately(case, over=TEN_MINUTES, since=NOW - 10 * WINDOW)


def test_nothing_remembered_is_nothing_missed() -> None:
    assert not missed_lately(of_tokens([], now=NOT_MEASURED), over=TEN_MINUTES, since=None)


def test_late_first_tokens_count_as_late_tokens_do() -> None:
    seen = observation(ttft=latency(0.6, tail=1.1), first_tokens=windows([0.3] * 10 + [0.6] * 10))
    for ttft, missed in ((0.7, True), (1.0, False)):
        case = Case(observation=seen, targets=targets(ttft=ttft), knobs=EngineKnobs())
        assert missed_lately(case, over=TEN_MINUTES, since=None) is missed


@pytest.mark.parametrize("seed", range(20))
def test_the_share_is_that_of_the_requests_themselves(seed: int) -> None:
    """Windows whose means move, each with the spread of the last: against what is counted request by request."""
    random = np.random.default_rng(seed)
    width, means = random.uniform(0.05, 0.8), list(random.uniform(0.02, 0.06, 20))
    drawn = [mean * np.exp(random.normal(-(width**2) / 2, width, 20_000)) for mean in means]
    last, late = drawn[-1], float(np.quantile(np.concatenate(drawn), 0.95))
    edges = [float(edge) for edge in np.geomspace(0.001, 1.0, 60)]
    buckets = {edge: float(np.sum(last <= edge)) for edge in edges} | {float("inf"): float(last.size)}
    now = Distribution(buckets=buckets, total=float(last.sum()), count=float(last.size))
    case = of_tokens(means, now=now)
    for times, missed in ((0.95, True), (1.05, False)):
        against = Case(observation=case.observation, targets=targets(tpot=late * times), knobs=EngineKnobs())
        assert missed_lately(against, over=timedelta(seconds=WINDOW * 21), since=None) is missed


@pytest.mark.parametrize(
    ("ttft", "tpot", "clearly"), [(0.2, 0.054, False), (0.2, 0.056, True), (2.3, 0.02, True), (2.1, 0.054, False)]
)
def test_missed_by_more_than_noise(ttft: float, tpot: float, clearly: bool) -> None:
    assert missed_clearly(of_tokens([], now=latency(tpot), ttft=latency(ttft))) is clearly


def test_what_is_not_measured_misses_nothing() -> None:
    assert not missed_clearly(of_tokens([], now=NOT_MEASURED, ttft=NOT_MEASURED))
