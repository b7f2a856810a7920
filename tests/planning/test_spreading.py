"""Slow tokens under a load that comes anyway: replicas where the user allows them, fewer seats where not."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.builders import NOW, SCRAPES, engine, latency, observation, targets
from tests.planning.situations import line, scaling, served, situation, with_steps

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Scaling
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import EngineWindow, Observation, StepPoint
from vllm_autotuner.planning.max_num_seqs import (
    NothingToGain,
    fit_to_kv_cache,
    lower_max_num_seqs,
    replicas_at_knee,
)
from vllm_autotuner.planning.more_replicas import needed_for_pace
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.situation import Situation

STEPS = line(16.0, 32.0, 64.0, base=0.02, per_sequence=0.001)
"""64 sequences take 84 ms a token and make 762 tokens/s; inside 50 ms, less a tenth, only 25 run and make 555."""


ALL_THE_TIME = [64.0] * SCRAPES
IN_BURSTS = [64.0 if scrape % 5 == 0 else 5.0 for scrape in range(SCRAPES)]
"""17 on average."""


def slow(running: list[float], tokens_per_second: float) -> Observation:
    """64 seats; the window of 28 s between its scrapes shows the given rate, and each token the batch it was in."""
    itl = latency(0.02 + 0.001 * sum(each**2 for each in running) / sum(running))
    loaded = engine(running=running, kv=[0.005 * each for each in running], generation_tokens=tokens_per_second * 28)
    return with_steps(observation(loaded, tpot=itl, itl=itl), STEPS)


def past_knee(*engines: EngineWindow, tpot: float, steps: tuple[StepPoint, ...] = STEPS, **given: Any) -> Situation:
    """These engines, whose tokens take `tpot` (seconds) and whose windows were `steps`; `given`: of `situation`."""
    late = latency(tpot)
    seen = with_steps(observation(*engines, tpot=late, itl=late), steps)
    return situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, **given)


@pytest.mark.parametrize(
    ("running", "scale", "knob"),
    [
        pytest.param(ALL_THE_TIME, scaling(), Knob.REPLICAS, id="more comes than the smaller batch serves"),
        pytest.param(IN_BURSTS, scaling(), Knob.MAX_NUM_SEQS, id="the smaller batch serves it all"),
        pytest.param(ALL_THE_TIME, None, Knob.MAX_NUM_SEQS, id="replicas are the user's own"),
        pytest.param(ALL_THE_TIME, scaling(high=1), Knob.MAX_NUM_SEQS, id="there may be no more"),
    ],
)
def test_what_helps_slow_tokens(running: list[float], scale: Scaling | None, knob: Knob) -> None:
    seen = slow(running, sum(running) / len(running) / (0.02 + 0.001 * sum(running) / len(running)))
    found = plan(situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scale)).proposal
    assert found is not None
    assert found.knob is knob
    assert found.target is ChangeTarget.TPOT


@pytest.mark.parametrize("error", [0.6, 1.0, 1.5])
def test_the_level_of_the_model_does_not_matter(error: float) -> None:
    """The lengths have changed, and the line is still that of before: what is served tells, not what it predicts."""
    found = plan(
        situation(slow(ALL_THE_TIME, 760.0 * error), primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scaling())
    ).proposal
    assert found is not None
    assert found.knob is Knob.REPLICAS


@pytest.mark.parametrize("scale", [scaling(), None])
def test_nothing_is_done_about_tokens_that_come_in_time_again(scale: Scaling | None) -> None:
    """The class holds on until TPOT is clearly inside; a change begun then would be judged by nothing."""
    found = plan(past_knee(engine(running=25.0), tpot=0.046, scale=scale))
    assert found.proposal is None
    assert "TPOT meets its objective again" in found.passed_over


@pytest.mark.parametrize(("finished", "acts"), [(30.0, False), (60.0, False), (400.0, True)])
@pytest.mark.parametrize("scale", [scaling(), None])
def test_nothing_is_done_about_a_tail_that_chance_explains(scale: Scaling | None, finished: float, acts: bool) -> None:
    """A tenth is slower than the objective where a twentieth may: 3 of 30 and 6 of 60 are chance, 40 of 400 are not."""
    slow_tail = latency(0.046, tail=0.056, count=finished)
    seen = with_steps(observation(engine(running=64.0), tpot=slow_tail, itl=latency(0.046)), STEPS)
    found = plan(situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scale))
    assert (found.proposal is not None) is acts, found
    assert ("TPOT is over its objective only within statistical noise" in found.passed_over) is not acts


@pytest.mark.parametrize("scale", [scaling(high=2), None])
def test_nothing_is_done_about_tokens_of_a_smaller_fleet(scale: Scaling | None) -> None:
    """The requests that finish now began before the replica came."""
    came = datetime.fromtimestamp(NOW - 10, tz=UTC)
    alone = slow(ALL_THE_TIME, 760.0)
    seen = replace(alone, engines=(*alone.engines, engine(pod="chat-1", running=64.0)))
    given = situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scale, replicas=2)
    assert plan(replace(given, replicas_since=came)).proposal is None
    assert plan(given).proposal is not None


LATE = latency(3.0)
"""The objective is 2 s."""


@pytest.mark.parametrize(
    "primary",
    [DiagnosisClass.PAST_TPOT_KNEE, DiagnosisClass.DECODE_BANDWIDTH_BOUND, DiagnosisClass.COMMUNICATION_BOUND],
)
@pytest.mark.parametrize(
    ("waiting", "ttft", "asks"),
    [
        pytest.param(9.0, LATE, True, id="first tokens wait as well"),
        pytest.param(9.0, latency(0.2), False, id="they come in time all the same"),
        pytest.param(0.0, LATE, False, id="nothing waits"),
    ],
)
def test_slow_tokens_hide_no_queue(primary: DiagnosisClass, waiting: float, ttft: Distribution, asks: bool) -> None:
    """No batch is known to meet the objective of tokens; that of first tokens a replica brings back."""
    seen = observation(engine(running=64.0, waiting=waiting), ttft=ttft, tpot=latency(0.12), itl=latency(0.12))
    steps = line(16.0, 32.0, 64.0, base=0.06, per_sequence=0.001)
    found = plan(situation(with_steps(seen, steps), primary=primary, scale=scaling())).proposal
    assert (found is not None and found.knob is Knob.REPLICAS and found.target is ChangeTarget.TTFT) is asks


def test_no_replica_where_no_batch_is_known_to_meet_the_objective() -> None:
    steps = line(16.0, 32.0, 64.0, base=0.06, per_sequence=0.001)
    found = plan(past_knee(engine(running=64.0), tpot=0.12, steps=steps, scale=scaling()))
    assert found.proposal is None
    assert "replicas might not help" in found.passed_over[-1]


@pytest.mark.parametrize(("waiting", "refused"), [(20.0, True), (0.0, False)])
def test_a_thrashing_pool_with_a_queue_gets_a_replica_first(waiting: float, refused: bool) -> None:
    seen = observation(engine(running=64.0, waiting=waiting, kv=0.99, preemptions=30.0))
    found = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256, scale=scaling()))
    assert isinstance(found, NothingToGain) is refused
    alone = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256))
    assert not isinstance(alone, NothingToGain)


@pytest.mark.parametrize(("came", "refused"), [(10, True), (60, False)])
def test_evictions_of_a_smaller_fleet_lower_no_seats(came: int, refused: bool) -> None:
    """The counters of the window are of the time in which the replica was starting."""
    seen = observation(engine(running=64.0, kv=0.99, preemptions=30.0), engine(pod="chat-1", running=8.0))
    given = situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256, replicas=2)
    since = datetime.fromtimestamp(NOW - came, tz=UTC)
    assert isinstance(fit_to_kv_cache(replace(given, replicas_since=since)), NothingToGain) is refused


@pytest.mark.parametrize(("answered_in", "refused"), [(120.0, True), (20.0, False)])
def test_requests_of_a_smaller_fleet_fill_its_pool_until_they_end(answered_in: float, refused: bool) -> None:
    """A minute after the replica came: answers of two minutes are still of before, those of 20 s are not.

    Seats were lowered for the pile on one engine while two others stood nearly empty, and the trial kept the replica
    that had come for it (closed loop, kv-bound).
    """
    full, rest = engine(running=64.0, kv=0.99, preemptions=30.0), engine(pod="chat-1", running=8.0, kv=0.1)
    seen = observation(full, rest, e2e=latency(answered_in))
    given = situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256, replicas=2)
    since = datetime.fromtimestamp(NOW - 60, tz=UTC)
    assert isinstance(fit_to_kv_cache(replace(given, replicas_since=since)), NothingToGain) is refused


@pytest.mark.parametrize(
    ("tokens", "scale", "refused"),
    [
        pytest.param(1560.0, scaling(), True, id="58 seats at 40 ms make 1,450: a tenth less has to be left"),
        pytest.param(1200.0, scaling(), False, id="evictions take so much that 58 seats make more"),
        pytest.param(1560.0, None, False, id="replicas are the user's own"),
    ],
)
def test_seats_that_make_less_than_is_asked_for_are_no_cure_for_evictions(
    tokens: float, scale: Scaling | None, refused: bool
) -> None:
    """As for slow tokens: the rest would queue, and queued for eight minutes (closed loop, kv-bound)."""
    thrashing = engine(running=64.0, kv=0.99, preemptions=30.0, generation_tokens=tokens * 28)
    seen = observation(thrashing, itl=latency(0.040))
    found = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256, scale=scale))
    assert isinstance(found, NothingToGain) is refused


NO_LINE = (*line(40.0, 48.0, base=0.012, per_sequence=0.0), *line(13.0, 15.0, base=0.02, per_sequence=0.0001))
"""Longer prompts on smaller batches: together tokens come no slower with a larger batch."""
TOO_SLOW = tuple(replace(point, itl=point.itl * 4) for point in NO_LINE)


@pytest.mark.parametrize(
    ("steps", "scale", "knob", "confidence"),
    [
        pytest.param(NO_LINE, scaling(), Knob.REPLICAS, Confidence.HIGH, id="a batch has met it"),
        pytest.param(TOO_SLOW, scaling(), Knob.MAX_NUM_SEQS, Confidence.LOW, id="none has: a guess is shown"),
        pytest.param(NO_LINE, None, Knob.MAX_NUM_SEQS, Confidence.LOW, id="replicas are the user's own"),
    ],
)
def test_without_a_model_replicas_come_where_the_objective_has_been_met(
    steps: tuple[StepPoint, ...], scale: Scaling | None, knob: Knob, confidence: Confidence
) -> None:
    found = plan(past_knee(engine(running=32.0), tpot=0.06, steps=steps, scale=scale)).proposal
    assert found is not None
    assert (found.knob, found.confidence) == (knob, confidence)


@pytest.mark.parametrize(
    ("running", "waiting", "refused"),
    [
        pytest.param([64.0 - scrape for scrape in range(SCRAPES)], 0.0, True, id="sequences become fewer"),
        pytest.param(64.0, [40.0 - 2 * scrape for scrape in range(SCRAPES)], True, id="the queue becomes shorter"),
        pytest.param([64.0, 62.0, 66.0] * 5, 0.0, False, id="as many as before, up to noise"),
        pytest.param([50.0 + scrape for scrape in range(SCRAPES)], 0.0, False, id="they become more"),
    ],
)
def test_evictions_of_what_is_worked_off_lower_no_seats(
    running: float | list[float], waiting: float | list[float], refused: bool
) -> None:
    """A burst, or the time in which a replica was starting: it is over before a trial has begun."""
    seen = observation(engine(running=running, waiting=waiting, kv=0.95, preemptions=30.0))
    found = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256))
    assert isinstance(found, NothingToGain) is refused


def test_no_seats_are_lowered_where_nothing_runs_any_more() -> None:
    """The tokens of a moment ago were late, and the class is still held."""
    seen = observation(engine(running=0.0, kv=None), tpot=latency(1.0), itl=latency(0.02))
    assert plan(situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, seats=None)).proposal is None


ONE_BATCH = line(30.0, 32.0, 34.0, 31.0, base=0.03, per_sequence=0.001)
"""The load keeps one batch, and tokens come at 62 ms."""
FEW = ONE_BATCH[:2]
NEVER_IN_TIME = tuple(replace(point, itl=point.itl * 5) for point in NO_LINE)


@pytest.mark.parametrize(
    ("steps", "objective", "replicas", "high", "knob", "count"),
    [
        # 62 ms at 32 sequences of 1,152 tokens: alone 62 / (1 + 32 * 0.0086) = 48.6 ms.
        pytest.param(ONE_BATCH, 0.056, 1, 4, Knob.REPLICAS, 2, id="one more tells what a smaller batch does"),
        pytest.param(ONE_BATCH, 0.056, 3, 4, Knob.REPLICAS, 4, id="and one only, however many there are"),
        pytest.param(ONE_BATCH, 0.056, 1, 1, Knob.MAX_NUM_SEQS, 16, id="there may be no more: a guess is shown"),
        pytest.param(ONE_BATCH, 0.050, 1, 4, Knob.MAX_NUM_SEQS, 16, id="no engine would be in time: a guess is shown"),
        pytest.param(FEW, 0.056, 1, 4, Knob.MAX_NUM_SEQS, 16, id="too few windows: more will come"),
        pytest.param(NEVER_IN_TIME, 0.056, 1, 4, Knob.MAX_NUM_SEQS, 16, id="the batch has moved, and showed nothing"),
    ],
)
def test_without_a_model_one_replica_more_is_worth_a_look(
    steps: tuple[StepPoint, ...], objective: float, replicas: int, high: int, knob: Knob, count: int
) -> None:
    """Waiting for a load that never moves would leave the objective missed for good."""
    late = latency(0.062)
    seen = with_steps(served(observation(engine(running=32.0, kv=0.2), tpot=late, itl=late), prefill=None), steps)
    found = plan(
        situation(
            seen,
            primary=DiagnosisClass.PAST_TPOT_KNEE,
            scale=scaling(high=high),
            replicas=replicas,
            against=targets(tpot=objective),
        )
    ).proposal
    assert found is not None
    assert (found.knob, found.count) == (knob, count)


BACKLOG = line(110.0, 60.0, 40.0, 21.0, base=0.036, per_sequence=0.0006)
"""Windows in which prompts were worked off: a line that is too slow for a single sequence at any batch."""


@pytest.mark.parametrize(
    ("prefilling", "knob"),
    [
        pytest.param(0.6, Knob.REPLICAS, id="tokens wait for prompts: fewer on each engine shorten that"),
        pytest.param(0.4, None, id="prompts leave time: nothing says that replicas help"),
    ],
)
def test_where_tokens_wait_for_prompts_no_line_by_batch_refuses_a_replica(prefilling: float, knob: Knob | None) -> None:
    """After a drift to long prompts the objective was missed for minutes: no batch was known to meet it."""
    late = latency(0.047, tail=0.08)
    three = [engine(pod=f"chat-{pod}", running=21.0, kv=0.2) for pod in range(3)]
    seen = with_steps(served(observation(*three, tpot=late, itl=late), prompt=2400.0), BACKLOG)
    busy = tuple(replace(each, prefill_seconds=prefilling * each.sampled) for each in seen.engines)
    given = situation(
        replace(seen, engines=busy), primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scaling(high=8), replicas=3,
        against=targets(tpot=0.04),
    )  # fmt: skip
    found = plan(given).proposal
    assert (found and (found.knob, found.count)) == (knob and (knob, 4))


def test_the_forecast_of_the_tail_shrinks_with_the_batch_as_the_knee_does() -> None:
    """In proportion to the mean, five instead of twelve would take 14 % off the tail: no more than noise here."""
    late = latency(0.0396, tail=0.058)
    four = [engine(pod=f"chat-{pod}", running=12.0, kv=0.1) for pod in range(4)]
    exact = line(10.0, 11.0, 12.0, 13.0, 18.0, 19.0, 30.0, 31.0, base=0.03, per_sequence=0.0008)
    steps = tuple(replace(point, itl=point.itl * (1.08, 0.92)[number % 2]) for number, point in enumerate(exact))
    seen = with_steps(served(observation(*four, tpot=late, itl=late)), steps)
    against, scale = targets(tpot=0.04), scaling(high=8)
    found = plan(situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scale, against=against, replicas=4))
    assert found.proposal is not None
    assert (found.proposal.knob, found.proposal.count) == (Knob.REPLICAS, 8)


@pytest.mark.parametrize(
    ("engines", "needed"),
    [
        pytest.param(3, 4, id="3.8 meet the objective"),
        pytest.param(6, 8, id="7.6"),
        pytest.param(11, 14, id="13.97"),
    ],
)
def test_whole_engines_are_the_margin(engines: int, needed: int) -> None:
    serving = [engine(pod=f"chat-{pod}", running=64.0) for pod in range(engines)]
    assert replicas_at_knee(past_knee(*serving, tpot=0.084, scale=scaling(high=99), replicas=engines)) == needed


@pytest.mark.parametrize(
    ("grew", "needed"),
    [
        pytest.param(0.0, 8, id="7.6 engines for what is served"),
        pytest.param(40.0, 8, id="40 more than 300 in half a minute are chance"),
        pytest.param(150.0, 12, id="half as many more pile up: 11.4"),
    ],
)
def test_what_piles_up_counts_as_load(grew: float, needed: int) -> None:
    """Six engines that end 300 requests in the window, while so many more run than at its beginning.

    One doubling after the other, by what a full engine ends, took nine minutes for a load of six (length-drift).
    """
    rising = [64.0 + grew / 6 * (scrape / (SCRAPES - 1) - 0.5) for scrape in range(SCRAPES)]
    serving = [engine(pod=f"chat-{pod}", running=rising, finished=50.0) for pod in range(6)]
    assert needed_for_pace(past_knee(*serving, tpot=0.084, scale=scaling(high=99), replicas=6)) == needed


def test_where_a_small_batch_is_hardly_faster_no_fleet_is_bought_for_a_margin() -> None:
    """Two engines at a batch of 14 (16.8 ms, 833 tokens/s) where 16 ms are wanted.

    10 sequences meet that (625 tokens/s: 2.7 engines), 2 would be a tenth below it (139 tokens/s: 12).
    """
    serving = [engine(pod=f"chat-{pod}", running=14.0) for pod in range(2)]
    steps = line(6.0, 8.0, 10.0, 12.0, 14.0, 16.0, base=0.014, per_sequence=0.0002)
    against, scale = targets(tpot=0.016), scaling(high=99)
    found = past_knee(*serving, tpot=0.0168, steps=steps, scale=scale, replicas=2, against=against)
    assert replicas_at_knee(found) == 3


def test_so_many_replicas_at_once_as_the_knee_asks_for() -> None:
    # 762 tokens/s an engine, where 600 meet the objective: 4 engines become 5.1, so 6.
    alone = slow(ALL_THE_TIME, 760.0)
    others = (engine(pod=f"chat-{pod}", running=64.0) for pod in (1, 2, 3))
    seen = replace(alone, engines=(*alone.engines, *others))
    for high, count in ((8, 6), (5, 5)):
        found = plan(
            situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scaling(high=high), replicas=4)
        ).proposal
        assert found is not None
        assert (found.knob, found.count, found.extra_replicas) == (Knob.REPLICAS, count, count - 4)


def lately(itls: Sequence[float], *, every: float) -> tuple[StepPoint, ...]:
    """A window `every` so many seconds, the newest last, in which tokens came so slowly; the batch explains it all."""
    return tuple(
        StepPoint(running=1000 * itl, itl=itl, tokens=1000.0, time=NOW - every * back)
        for back, itl in enumerate(reversed(itls))
    )


@pytest.mark.parametrize(
    ("calm", "slow", "acts"),
    [
        pytest.param(9, 0.06, False, id="a burst"),
        pytest.param(9, 0.9, False, id="a burst, however slow"),
        pytest.param(1, 0.06, True, id="it lasts"),
        pytest.param(4, 0.052, True, id="it lasts, however little it is"),
    ],
)
def test_half_a_minute_of_slow_tokens_is_worth_no_restart(calm: int, slow: float, acts: bool) -> None:
    """Ten windows of half a minute: first some at 20 ms, then slow ones, where 50 ms are the objective.

    A trial of fewer seats held a GPU for the rest of the run for one such moment (closed loop, length-drift).
    """
    itls = [0.02] * calm + [slow] * (10 - calm)
    found = lower_max_num_seqs(past_knee(engine(running=60.0), tpot=0.06, steps=lately(itls, every=30.0)))
    assert isinstance(found, NothingToGain) is not acts, found


@pytest.mark.parametrize(("window", "acts"), [(10.0, True), (30.0, False)])
def test_slow_tokens_that_last_as_long_as_a_trial_are_no_burst(window: float, acts: bool) -> None:
    """Slow for 100 s after 120 s in time: ten of the short windows, of which a trial would see no more."""
    slow_now = observation(engine(running=60.0), tpot=latency(0.06), itl=latency(0.06))
    seen = with_steps(replace(slow_now, window=window), lately([0.02] * 12 + [0.06] * 10, every=10.0))
    found = lower_max_num_seqs(situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE))
    assert isinstance(found, NothingToGain) is not acts, found


@pytest.mark.parametrize(
    ("primary", "tpot", "needed"),
    [
        pytest.param(DiagnosisClass.PAST_TPOT_KNEE, 0.08, 2, id="one does 762 where 600 are in time: 1.3"),
        pytest.param(DiagnosisClass.PAST_TPOT_KNEE, 0.046, None, id="tokens are in time again"),
        pytest.param(DiagnosisClass.KV_CACHE_SATURATED, 0.08, None, id="something else is short"),
    ],
)
@pytest.mark.parametrize("asked", [1, 2, 3])
def test_what_is_needed_is_told_by_those_that_serve(
    primary: DiagnosisClass, tpot: float, needed: int | None, asked: int
) -> None:
    """However many were asked for: counted from those, a replica that starts would ask for the next (length-drift)."""
    alone = replace(slow(ALL_THE_TIME, 760.0), tpot=latency(tpot))
    assert needed_for_pace(situation(alone, primary=primary, scale=scaling(high=8), replicas=asked)) == needed
