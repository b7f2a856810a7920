"""Slow tokens under a load that comes anyway: replicas where the user allows them, fewer seats where not."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.builders import NOW, SCRAPES, engine, latency, observation, targets
from tests.planning.situations import LOWERABLE, line, scaling, served, situation, steady, with_steps

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Scaling
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import EngineWindow, Observation, StepPoint
from vllm_autotuner.planning.max_num_seqs import (
    fit_to_kv_cache,
)
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import Situation

STEPS = line(16.0, 32.0, 64.0, base=0.02, per_sequence=0.001)
"""64 sequences take 84 ms a token and make 762 tokens/s; inside 50 ms, less a tenth, only 25 run and make 555."""


ALL_THE_TIME = [64.0] * SCRAPES


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
    ("scale", "recommend_only"),
    [
        pytest.param(scaling(), "", id="more comes than a smaller batch serves"),
        pytest.param(None, "spec.scaling is not set, so the operator does not scale", id="replicas are the user's own"),
    ],
)
def test_replicas_help_slow_tokens_of_a_lasting_load(scale: Scaling | None, recommend_only: str) -> None:
    found = plan(situation(slow(ALL_THE_TIME, 760.0), primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scale)).proposal
    assert found is not None
    assert (found.knob, found.target, found.recommend_only) == (Knob.REPLICAS, ChangeTarget.TPOT, recommend_only)


def test_where_nothing_may_help_a_lasting_load_nothing_is_proposed() -> None:
    """Fewer slots would make a queue that grows: first tokens would be late in place of the others."""
    seen = slow(ALL_THE_TIME, 760.0)
    found = plan(situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scaling(high=1)))
    assert found.proposal is None
    assert [why for why in found.passed_over if "a replica finishes" in why]


@pytest.mark.parametrize("scale", [scaling(), scaling(high=1), None])
def test_fewer_slots_help_tokens_that_are_slow_in_bursts(scale: Scaling | None) -> None:
    found = plan(situation(LOWERABLE, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scale)).proposal
    assert found is not None
    assert (found.knob, found.target, found.recommend_only) == (Knob.MAX_NUM_SEQS, ChangeTarget.TPOT, "")


@pytest.mark.parametrize("scale", [scaling(), None])
def test_nothing_is_done_about_tokens_that_come_in_time_again(scale: Scaling | None) -> None:
    """The class holds on until TPOT is clearly inside; a change begun then would be judged by nothing."""
    found = plan(past_knee(engine(running=25.0), tpot=0.046, scale=scale))
    assert found.proposal is None
    assert "TPOT meets its objective" in found.passed_over


@pytest.mark.parametrize(("finished", "acts"), [(30.0, False), (60.0, False), (400.0, True)])
@pytest.mark.parametrize("scale", [scaling(), None])
def test_nothing_is_done_about_a_tail_that_chance_explains(scale: Scaling | None, finished: float, acts: bool) -> None:
    """A tenth is slower than the objective where a twentieth may: 3 of 30 and 6 of 60 are chance, 40 of 400 are not."""
    slow_tail = latency(0.084, tail=0.102, count=finished)
    full = engine(running=64.0, generation_tokens=64 / 0.084 * 28)
    seen = with_steps(observation(full, tpot=slow_tail, itl=latency(0.084)), STEPS)
    against = targets(tpot=0.09)
    found = plan(situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scale, against=against))
    assert (found.proposal is not None) is acts, found
    assert ("TPOT is over its objective only within statistical noise" in found.passed_over) is not acts


@pytest.mark.parametrize("scale", [scaling(high=3), None])
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
SLOW = latency(0.06)
"""The objective is 50 ms."""


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
    assert "replicas might not help" in " ".join(found.passed_over)


@pytest.mark.parametrize(("waiting", "refused"), [(20.0, True), (0.0, False)])
def test_a_thrashing_pool_with_a_queue_gets_a_replica_first(waiting: float, refused: bool) -> None:
    seen = observation(engine(running=64.0, waiting=waiting, kv=0.99, preemptions=30.0), tpot=SLOW)
    found = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256, scale=scaling()))
    assert isinstance(found, NothingToGain) is refused
    alone = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256))
    assert not isinstance(alone, NothingToGain)


@pytest.mark.parametrize(("came", "refused"), [(10, True), (60, False)])
def test_preemptions_of_a_smaller_fleet_do_not_lower_max_num_seqs(came: int, refused: bool) -> None:
    """The counters of the window are of the time in which the replica was starting."""
    seen = observation(engine(running=64.0, kv=0.99, preemptions=30.0), engine(pod="chat-1", running=8.0), tpot=SLOW)
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
    seen = observation(full, rest, e2e=latency(answered_in), tpot=SLOW)
    given = situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256, replicas=2)
    since = datetime.fromtimestamp(NOW - 60, tz=UTC)
    assert isinstance(fit_to_kv_cache(replace(given, replicas_since=since)), NothingToGain) is refused


@pytest.mark.parametrize(
    ("waiting", "tpot", "refused"),
    [
        pytest.param(0.0, latency(0.04), True, id="tokens come in time and nothing waits"),
        pytest.param(0.0, SLOW, False, id="tokens are late"),
        pytest.param(20.0, latency(0.04), True, id="others wait, and will wait for a slot"),
    ],
)
def test_preemptions_that_make_nothing_late_are_left_alone(waiting: float, tpot: Distribution, refused: bool) -> None:
    """A replica near the limit of its KV cache kept its objectives; with fewer slots it did not (closed loop).

    Of eight services drawn at random whose first tokens alone were late, fewer slots helped none.
    """
    seen = observation(engine(running=64.0, waiting=waiting, kv=0.99, preemptions=30.0), tpot=tpot)
    found = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256))
    assert isinstance(found, NothingToGain) is refused


def test_fewer_slots_are_judged_by_the_tokens_that_preemptions_make_late() -> None:
    seen = observation(engine(running=64.0, waiting=20.0, kv=0.99, preemptions=30.0), tpot=SLOW)
    found = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256))
    assert isinstance(found, Proposal)
    assert found.target is ChangeTarget.TPOT


@pytest.mark.parametrize("output", [256.0, 1024.0])
def test_what_the_kv_cache_does_not_hold_waits_rather_than_be_computed_twice(output: float) -> None:
    """It holds 58 of 64: six wait for their turn, evicted or not."""
    thrashing = steady(16, 32, 64, base=0.03, per_sequence=0.0004, pods=1, kv_each=0.99 / 64, output=output)
    found = fit_to_kv_cache(situation(thrashing, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256))
    assert isinstance(found, Proposal)
    assert found.value == 58


NO_LINE = (*line(40.0, 48.0, base=0.012, per_sequence=0.0), *line(13.0, 15.0, base=0.02, per_sequence=0.0001))
"""Longer prompts on smaller batches: together tokens come no slower with a larger batch."""


@pytest.mark.parametrize(
    ("scale", "knob", "confidence"),
    [
        pytest.param(scaling(), Knob.REPLICAS, Confidence.HIGH, id="replicas undo themselves"),
        pytest.param(None, Knob.MAX_NUM_SEQS, Confidence.LOW, id="they are the user's own: a guess is shown"),
    ],
)
def test_without_a_model_replicas_come_where_the_user_allows_them(
    scale: Scaling | None, knob: Knob, confidence: Confidence
) -> None:
    found = plan(past_knee(engine(running=32.0), tpot=0.06, steps=NO_LINE, scale=scale)).proposal
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
def test_preemptions_of_a_draining_backlog_do_not_lower_max_num_seqs(
    running: float | list[float], waiting: float | list[float], refused: bool
) -> None:
    """A burst, or the time in which a replica was starting: it is over before a trial has begun."""
    seen = observation(engine(running=running, waiting=waiting, kv=0.95, preemptions=30.0), tpot=SLOW)
    found = fit_to_kv_cache(situation(seen, primary=DiagnosisClass.PREEMPTION_THRASH, seats=256))
    assert isinstance(found, NothingToGain) is refused


def test_max_num_seqs_is_not_lowered_where_nothing_runs_any_more() -> None:
    """The tokens of a moment ago were late, and the class is still held."""
    seen = observation(engine(running=0.0, kv=None), tpot=latency(1.0), itl=latency(0.02))
    assert plan(situation(seen, primary=DiagnosisClass.PAST_TPOT_KNEE, seats=None)).proposal is None


ONE_BATCH = line(30.0, 32.0, 34.0, 31.0, base=0.03, per_sequence=0.001)
"""The load keeps one batch, and tokens come at 62 ms."""
FEW = ONE_BATCH[:2]


@pytest.mark.parametrize(
    ("steps", "objective", "replicas", "high", "count"),
    [
        # 62 ms at 32 sequences of 1,152 tokens: alone 62 / (1 + 32 * 0.0086) = 48.6 ms.
        pytest.param(ONE_BATCH, 0.056, 1, 4, 2, id="one more tells what a smaller batch does"),
        pytest.param(ONE_BATCH, 0.056, 3, 4, 4, id="up to the maximum"),
        pytest.param(ONE_BATCH, 0.056, 1, 1, None, id="there may be no more"),
        pytest.param(ONE_BATCH, 0.045, 1, 4, None, id="no engine would be in time"),
        pytest.param(FEW, 0.056, 1, 4, 2, id="few windows are no reason to wait"),
    ],
)
def test_where_the_batch_never_moves_engines_in_general_tell_whether_replicas_help(
    steps: tuple[StepPoint, ...], objective: float, replicas: int, high: int, count: int | None
) -> None:
    """Waiting for a load that never moves would leave the objective missed for good."""
    late = latency(0.062)
    seen = with_steps(served(observation(engine(running=32.0, kv=0.2), tpot=late, itl=late), prefill=None), steps)
    seen = replace(seen, recent_prompt_length=latency(1024.0), recent_output_length=latency(256.0))
    found = plan(
        situation(
            seen,
            primary=DiagnosisClass.PAST_TPOT_KNEE,
            scale=scaling(high=high),
            replicas=replicas,
            against=targets(tpot=objective),
        )
    ).proposal
    assert (found and (found.knob, found.count)) == (count and (Knob.REPLICAS, count))


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
        against=targets(tpot=0.035),
    )  # fmt: skip
    found = plan(given).proposal
    assert (found and (found.knob, found.count)) == (knob and (knob, 4))


@pytest.mark.parametrize("scale", [scaling(high=20), None])
@pytest.mark.parametrize(("replicas", "grown", "asked"), [(4, 20.0, 7), (4, 120.0, 8), (2, 20.0, 4)])
def test_as_many_replicas_are_asked_for_as_a_queue_needs(
    scale: Scaling | None, replicas: int, grown: float, asked: int
) -> None:
    """Whoever scales: one more at a time is told four times while all drown. At most twice as many at once."""
    late = latency(0.094)
    grows = [200.0 + grown * scrape / (SCRAPES - 1) for scrape in range(SCRAPES)]
    engines = [engine(pod=f"chat-{pod}", running=48.0, waiting=grows, kv=0.3) for pod in range(replicas)]
    seen = with_steps(
        served(observation(*engines, ttft=latency(30.0), tpot=late, itl=late)),
        line(12.0, 24.0, 36.0, 42.0, 48.0, base=0.03, per_sequence=0.00133),
    )
    given = situation(
        seen, primary=DiagnosisClass.OVERLOADED, scale=scale, replicas=replicas, seats=48, against=targets(tpot=0.2)
    )
    found = plan(given).proposal
    assert (found and (found.knob, found.count)) == (Knob.REPLICAS, asked)


def test_a_forecast_that_knows_of_no_harm_does_not_refuse_a_replica() -> None:
    """By the model all are served, and yet they wait: what makes them wait is not in it."""
    late = latency(0.03)
    seen = with_steps(
        served(observation(engine(running=20.0, waiting=30.0, kv=0.3), ttft=latency(9.0), tpot=late, itl=late)),
        line(6.0, 10.0, 20.0, 24.0, base=0.01, per_sequence=0.001),
    )
    found = plan(situation(seen, primary=DiagnosisClass.OVERLOADED, seats=256, replicas=1))
    assert found.before is not None
    assert found.before.missing == 0
    assert found.proposal is not None
    assert (found.proposal.knob, found.proposal.count) == (Knob.REPLICAS, 2)


@pytest.mark.parametrize(("ttft", "target"), [(0.3, ChangeTarget.TPOT), (9.0, ChangeTarget.TTFT)])
def test_replicas_against_prompts_are_for_what_they_make_late(ttft: float, target: ChangeTarget) -> None:
    late = latency(0.08, count=400)
    one = engine(running=2.0, kv=0.1, prefill_seconds=0.8 * 28, prompt_tokens=400_000.0)
    seen = observation(one, ttft=latency(ttft), tpot=late, itl=late)
    found = plan(situation(seen, primary=DiagnosisClass.PREFILL_BOUND)).proposal
    assert found is not None
    assert (found.knob, found.target) == (Knob.REPLICAS, target)


@pytest.mark.parametrize(("prefill", "count"), [(0.2, 4), (1.4, None)])
def test_prompts_that_come_in_bursts_get_a_replica_and_long_ones_do_not(prefill: float, count: int | None) -> None:
    """Half of the time is spent on prompts: of a TTFT of 3 s a prompt of 0.2 s waits, one of 1.4 s computes."""
    both = [engine(pod=f"chat-{pod}", running=8.0, kv=0.1, prefill_seconds=0.5 * 28) for pod in range(2)]
    late = latency(0.02)
    seen = with_steps(
        served(observation(*both, ttft=latency(3.0), tpot=late, itl=late), prefill=prefill, prompt=2000.0),
        line(4.0, 8.0, 12.0, 16.0, base=0.012, per_sequence=0.001),
    )
    seen = replace(seen, recent_prompt_length=latency(2000.0), prompt_length=latency(2000.0, tail=8000.0))
    found = plan(situation(seen, primary=DiagnosisClass.PREFILL_BOUND, replicas=2)).proposal
    assert (found and found.count) == count
