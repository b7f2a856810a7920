"""Late first tokens and late tokens, held against the share that an objective allows, and for how long they were."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from tests.builders import NOT_MEASURED, NOW, WINDOW, engine, latency, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.objectives import Target
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import StepPoint
from vllm_autotuner.observation.observation import FirstTokens, Observation
from vllm_autotuner.scaling.error_budget import budget_spent, late_for

TEN_MINUTES = timedelta(minutes=10)


def windows(means: Sequence[float], *, requests: Sequence[float] | None = None) -> tuple[FirstTokens, ...]:
    """Windows of one engine, the last one now."""
    counts = requests or [100.0] * len(means)
    return tuple(
        FirstTokens(mean=mean, requests=count, time=NOW - WINDOW * back)
        for back, (mean, count) in enumerate(zip(reversed(means), reversed(counts), strict=True))
    )


def of_first_tokens(seen: Observation, *, ttft: float = 1.0) -> Case:
    return Case(observation=seen, targets=targets(ttft=ttft, tpot=1.0), knobs=EngineKnobs())


def of_tokens(means: Sequence[float], *, now: Distribution, output: float = 1.0) -> Case:
    """Windows of 50 ms at p95 against what was seen; first tokens are in time.

    `output`: tokens of a request. With one each there are so many that hardly any is late by chance.
    """
    steps = tuple(
        StepPoint(running=20.0, itl=mean, tokens=1000.0, time=NOW - WINDOW * back)
        for back, mean in enumerate(reversed(means))
    )
    seen = observation(tpot=now, itl=now, ttft=latency(0.2), steps=steps)
    seen = replace(seen, recent_output_length=Distribution(buckets={}, total=output * 100, count=100.0))
    return Case(observation=seen, targets=targets(tpot=0.05), knobs=EngineKnobs())


@pytest.mark.parametrize(
    ("late", "seconds", "spent"),
    [
        pytest.param(1, 600, False, id="half a minute of ten"),
        pytest.param(5, 600, True, id="two and a half"),
        pytest.param(1, 90, True, id="half a minute of the last one and a half"),
        pytest.param(20, 600, True, id="all the time"),
        pytest.param(0, 600, False, id="never"),
    ],
)
def test_more_tokens_were_late_than_may_be(late: int, seconds: float, spent: bool) -> None:
    """54 ms at p95, 48 on average: a quarter of such a window is late."""
    case = of_tokens([0.04] * (20 - late) + [0.048] * late, now=latency(0.048, tail=0.054))
    assert budget_spent(case, over=timedelta(seconds=seconds), since=None, beyond_chance=True) is spent


@pytest.mark.parametrize(("of_requests", "spent"), [(latency(0.045, count=5.0), False), (NOT_MEASURED, True)])
def test_single_tokens_stand_in_only_where_no_tpot_is_exported(of_requests: Distribution, spent: bool) -> None:
    """Five requests finished, all at 45 ms. A tenth of the single tokens took 90, and no request did on the whole."""
    case = of_tokens([0.045] * 20, now=of_requests)
    seen = replace(case.observation, itl=latency(0.045, count=20_000.0, tail=0.09))
    assert budget_spent(replace(case, observation=seen), over=TEN_MINUTES, since=None, beyond_chance=True) is spent


@pytest.mark.parametrize(
    ("requests", "spent"),
    [pytest.param(14.0, False, id="of 70, seven may be late by chance"), pytest.param(1000.0, True, id="of 5,000")],
)
def test_what_is_late_by_chance_spends_nothing(requests: float, spent: bool) -> None:
    """Of the first tokens in two and a half minutes 7 % are late."""
    seen = observation(ttft=latency(0.5, tail=1.0), first_tokens=windows([0.3] * 4 + [0.9], requests=[requests] * 5))
    case, over = of_first_tokens(seen, ttft=1.0), timedelta(seconds=5 * WINDOW)
    assert budget_spent(case, over=over, since=None, beyond_chance=True) is spent
    assert budget_spent(case, over=over, since=None, beyond_chance=False)


@pytest.mark.parametrize(
    ("output", "spent"),
    [
        pytest.param(300.0, False, id="of 67 requests, six may be late by chance"),
        pytest.param(3.0, True, id="of 6,700"),
    ],
)
def test_late_tokens_differ_by_chance_as_their_requests_do(output: float, spent: bool) -> None:
    """Of 20,000 tokens 7 % are late. The tokens of a request are late together."""
    case = of_tokens([0.04] * 14 + [0.048] * 6, now=latency(0.048, tail=0.054), output=output)
    assert budget_spent(case, over=TEN_MINUTES, since=None, beyond_chance=True) is spent
    assert budget_spent(case, over=TEN_MINUTES, since=None, beyond_chance=False)


@pytest.mark.parametrize("output", [1e6, 1e300])
def test_part_of_a_request_is_not_late_by_chance(output: float) -> None:
    """Of a fiftieth of a request as much as three times all of its tokens was: such answers could be late for ever."""
    case = of_tokens([0.08] * 20, now=latency(0.08, tail=0.09), output=output)
    assert budget_spent(case, over=TEN_MINUTES, since=None, beyond_chance=True)


@pytest.mark.parametrize("output", [5e-324, 0.0, -3.0, float("nan"), float("inf")])
def test_lengths_that_no_request_has_are_survived(output: float) -> None:
    """With a draft, half of the least number there is was 0."""
    case = of_tokens([0.08] * 20, now=latency(0.08, tail=0.09), output=1.0)
    length = Distribution(buckets={}, total=output, count=1.0)
    drafted = engine(generation_tokens=300.0, accepted_tokens=200.0)
    seen = replace(case.observation, engines=(drafted,), recent_output_length=length)
    assert not budget_spent(replace(case, observation=seen), over=TEN_MINUTES, since=None, beyond_chance=True)


def test_the_worked_example() -> None:
    """p95 within 25 ms, 27 at a mean of 24: one minute of ten costs 3 % of the tokens, and two cost 6 %."""
    for late, spent in ((2, False), (4, True)):
        case = of_tokens([0.010] * (20 - late) + [0.024] * late, now=latency(0.024, tail=0.0273, count=1e6))
        against = Case(observation=case.observation, targets=targets(tpot=0.025), knobs=EngineKnobs())
        assert budget_spent(against, over=TEN_MINUTES, since=None, beyond_chance=True) is spent


@pytest.mark.parametrize(
    ("means", "requests", "spent"),
    [
        pytest.param([0.2] * 20, None, False, id="always in time"),
        pytest.param([0.2, 3.0, *[0.2] * 18], [100.0, 50.0, *[100.0] * 18], False, id="fewer late than may be"),
        pytest.param([0.2, 3.0, *[0.2] * 18], [100.0, 500.0, *[100.0] * 18], True, id="a burst of many"),
        pytest.param([0.2, 0.2, *[3.0] * 2, *[0.2] * 16], None, True, id="a minute of ten"),
    ],
)
def test_late_first_tokens_count_by_requests(means: list[float], requests: list[float] | None, spent: bool) -> None:
    case = of_first_tokens(observation(ttft=latency(0.2), first_tokens=windows(means, requests=requests)))
    assert budget_spent(case, over=TEN_MINUTES, since=None, beyond_chance=True) is spent


@pytest.mark.parametrize(("ttft", "spent"), [(0.7, True), (1.3, False)])
def test_the_tail_of_the_present_window_is_that_of_all(ttft: float, spent: bool) -> None:
    """Means hide that some wait longer: of 0.6 s on average p95 is 1.1 s."""
    seen = observation(ttft=latency(0.6, tail=1.1), first_tokens=windows([0.3] * 10 + [0.6] * 10))
    assert budget_spent(of_first_tokens(seen, ttft=ttft), over=TEN_MINUTES, since=None, beyond_chance=True) is spent


@pytest.mark.parametrize(
    ("quantile", "slow", "within", "spent"),
    [
        pytest.param(0.95, 0.04, 2.0, False, id="4 % of 60 s, and 5 % may be late"),
        pytest.param(0.5, 0.1, 1.0, False, id="a tenth, and half may be late"),
        pytest.param(0.75, 0.1, 1.0, False, id="a tenth, and a quarter may be late"),
        pytest.param(0.5, 0.6, 1.0, True, id="more than half"),
        pytest.param(0.95, 0.2, 2.0, True, id="a fifth"),
    ],
)
def test_a_few_far_slower_requests_do_not_make_all_late(
    quantile: float, slow: float, within: float, spent: bool
) -> None:
    """The rest takes 0.3 s: the few lift the mean above the objective, which is about a quantile."""
    count, quick = 1000.0, 1000.0 * (1 - slow)
    buckets = {0.25: 0.0, 0.5: quick, 40.0: quick, 80.0: count, float("inf"): count}
    now = Distribution(buckets=buckets, total=quick * 0.3 + (count - quick) * 60.0, count=count)
    mean = (now.total or 0.0) / count
    seen = observation(ttft=now, first_tokens=windows([mean] * 20))
    case = of_first_tokens(seen)
    late = replace(case, targets=replace(case.targets, ttft=Target(quantile=quantile, seconds=within)))
    for beyond_chance in (True, False):
        assert budget_spent(late, over=TEN_MINUTES, since=None, beyond_chance=beyond_chance) is spent


@pytest.mark.parametrize(("slow_windows", "spent"), [(0, False), (4, True)])
def test_an_outlier_excuses_no_window_whose_quantile_is_late(slow_windows: int, spent: bool) -> None:
    """Now p95 is 0.45 s at a mean of 0.52, by one request of 60 s. A fifth of the windows took 20 s on average."""
    now = Distribution(buckets={0.4: 0.0, 0.5: 999.0, 80.0: 1000.0, float("inf"): 1000.0}, total=510.0, count=1000.0)
    case = of_first_tokens(
        observation(ttft=now, first_tokens=windows([0.5] * (20 - slow_windows) + [20.0] * slow_windows))
    )
    assert budget_spent(case, over=TEN_MINUTES, since=None, beyond_chance=False) is spent


def test_a_step_that_makes_several_tokens_is_as_long_as_it_may_be_for_them() -> None:
    """Speculative decoding without a TPOT: 100 ms a step, of three tokens each, within 50 ms for a token."""
    case = of_tokens([0.1] * 20, now=NOT_MEASURED)
    (pod,) = case.observation.engines
    drafts = replace(pod, generation_tokens=30_000.0, accepted_tokens=20_000.0)
    drafted = replace(case, observation=replace(case.observation, engines=(drafts,)))
    for seen, spent in ((case, True), (drafted, False)):
        assert budget_spent(seen, over=TEN_MINUTES, since=None, beyond_chance=False) is spent


def test_what_was_late_on_other_replicas_says_nothing_of_these() -> None:
    tokens = of_tokens([0.06] * 10 + [0.04] * 10, now=latency(0.04, tail=0.045))
    first = of_first_tokens(observation(ttft=latency(0.2), first_tokens=windows([3.0] * 10 + [0.2] * 10)))
    for case in (tokens, first):
        assert budget_spent(case, over=TEN_MINUTES, since=None, beyond_chance=True)
        assert not budget_spent(case, over=TEN_MINUTES, since=NOW - 10 * WINDOW, beyond_chance=True)


def test_nothing_remembered_is_nothing_late() -> None:
    assert not budget_spent(of_tokens([], now=NOT_MEASURED), over=TEN_MINUTES, since=None, beyond_chance=True)


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
    for times, spent in ((0.95, True), (1.05, False)):
        against = Case(observation=case.observation, targets=targets(tpot=late * times), knobs=EngineKnobs())
        assert budget_spent(against, over=timedelta(seconds=WINDOW * 21), since=None, beyond_chance=True) is spent


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
    case = of_first_tokens(observation(ttft=latency(now), first_tokens=windows(means)))
    assert late_for(case) == pytest.approx(seconds)


def test_a_rest_ends_what_was_late_before_it() -> None:
    """Nobody asked for two windows, so that nobody waited."""
    before, present = windows([3.0] * 5)[-2:], windows([3.0])
    seen = observation(ttft=latency(3.0), first_tokens=(*before, *present))
    assert late_for(of_first_tokens(seen)) == pytest.approx(WINDOW)


def test_engines_count_by_their_requests() -> None:
    """One of them was late on few: of what all got their first token, the mean was in time."""
    busy, idle = windows([0.2, 0.2, 3.0], requests=[90.0] * 3), windows([3.0] * 3, requests=[10.0] * 3)
    seen = observation(ttft=latency(3.0), first_tokens=(*busy, *idle))
    assert late_for(of_first_tokens(seen)) == pytest.approx(WINDOW)


def test_without_a_measurement_none_are_late() -> None:
    assert late_for(of_first_tokens(observation(ttft=NOT_MEASURED))) == 0.0
