"""How many replicas: out when requests wait, are late or will be, in when the rest carry the load, never for a hang."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import NOT_MEASURED, WINDOW, engine, latency, observation, targets
from tests.builders import NOW as AT
from tests.planning.situations import diagnosis, scaling
from tests.scaling.loads import LENGTH, carrying, drafted, in_pods, minutes, queue

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.api.spec import ScaleIn, ScaleOut
from vllm_autotuner.diagnosis import case as diagnosis_case
from vllm_autotuner.diagnosis.classes import SLOW_TOKENS, DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Contribution
from vllm_autotuner.engine.startup_log import StartupFailure, StartupReason
from vllm_autotuner.observation.observation import FirstTokens, Observation
from vllm_autotuner.observation.pod_starts import PodStart, PodsView
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.scaling.desired_replicas import SCALE_OUT_ON, desired_replicas
from vllm_autotuner.scaling.supply import Scale, Supply

NOW = datetime.fromtimestamp(AT, tz=UTC)
WAITING = observation(engine(running=39.0, waiting=9.0, finished=30.0))
"""Nothing is known of steps or lengths, so that there is no model of a replica: only the queue tells."""


def desired(
    primary: DiagnosisClass = DiagnosisClass.OVERLOADED,
    *,
    held: float = 0.0,
    current: int = 2,
    ready: int | None = None,
    rolled_out: bool = True,
    tpot: float = 0.05,
    ttft: float = 2.0,
    seats: int | None = 1024,
    low: int = 1,
    high: int = 8,
    seen: Observation = WAITING,
    newest: float | None = None,
    asked: float | None = None,
    took: float | None = None,
    failed: Sequence[ScaleInTried] = (),
    beside: Sequence[DiagnosisClass] = (),
    **changed: Any,
) -> Scale:
    contributing = tuple(Contribution(diagnosis=each, message="") for each in beside)
    supply = Supply(
        current=current,
        rolled_out=rolled_out,
        ready=current if ready is None else ready,
        newest_since=None if newest is None else NOW - timedelta(seconds=newest),
        pods_changed_at=None if asked is None else NOW - timedelta(seconds=asked),
        start_up=None if took is None else timedelta(seconds=took),
        failed=failed,
    )
    return desired_replicas(
        supply,
        scaling=scaling(low, high).updated(**changed),
        situation=Situation(
            diagnosis=replace(diagnosis(primary, since=AT - held), contributing=contributing),
            case=diagnosis_case.Case(
                observation=seen, targets=targets(tpot=tpot, ttft=ttft), knobs=EngineKnobs(max_num_seqs=seats)
            ),
        ),
        now=NOW,
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    replicas: int
    given: Mapping[str, Any] = field(default_factory=dict)
    says: str = ""


PATIENT = ScaleOut(waiting_for=timedelta(minutes=2))

CASES = (
    Case(id="requests wait: one more", replicas=3, says="demand exceeds capacity: A sentence."),
    Case(
        id="not as long as was asked for",
        given={"scale_out": PATIENT, "held": 89},
        replicas=2,
        says="exceeded capacity for 119 s",
    ),
    Case(id="as long as was asked for", given={"scale_out": PATIENT, "held": 90}, replicas=3),
    Case(
        id="replicas that are starting are supply",
        given={"current": 4, "ready": 3},
        replicas=4,
        says="1 replica(s) are still starting",
    ),
    Case(
        id="a replica that has just come counts, too: what waits may be from before it",
        given={"held": 300, "newest": 29},
        replicas=2,
        says="exceeded capacity for 29 s",
    ),
    Case(id="requests still wait half a minute after it came", given={"held": 300, "newest": 30}, replicas=3),
    Case(id="never past the maximum", given={"current": 8}, replicas=8, says="at scaling.maxReplicas (8)"),
    Case(
        id="idle, but not for long",
        given={"primary": DiagnosisClass.IDLE, "held": 599},
        replicas=2,
        says="Idle does not call for scaling",
    ),
    Case(
        id="idle for ten minutes: down to the minimum",
        given={"primary": DiagnosisClass.IDLE, "held": 600, "current": 5},
        replicas=1,
        says="idle for 600 s",
    ),
    Case(
        id="idle, but the new pods of an upgrade may not start",
        given={"primary": DiagnosisClass.IDLE, "held": 600, "current": 5, "rolled_out": False},
        replicas=5,
        says="pods are being replaced",
    ),
    Case(
        id="idle for as long as the user says",
        given={"primary": DiagnosisClass.IDLE, "held": 60, "scale_in": ScaleIn(stabilization=timedelta(minutes=1))},
        replicas=1,
    ),
    Case(
        id="idle at the minimum",
        given={"primary": DiagnosisClass.IDLE, "held": 9000, "low": 2},
        replicas=2,
        says="at scaling.minReplicas",
    ),
    Case(
        id="idle, but one of them is silent",
        given={"primary": DiagnosisClass.IDLE, "held": 600, "seen": replace(WAITING, silent=("chat-9",))},
        replicas=2,
        says="a silent one may be busy",
    ),
    Case(
        id="more than the user allows comes back at once",
        given={"current": 9, "primary": DiagnosisClass.HEALTHY},
        replicas=8,
        says="spec.scaling allows 1 to 8",
    ),
    Case(
        id="fewer than the user allows, too",
        given={"current": 1, "low": 3, "primary": DiagnosisClass.METRICS_BLIND},
        replicas=3,
        says="spec.scaling allows 3 to 8",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_how_many(case: Case) -> None:
    found = desired(**case.given)
    assert found.replicas == case.replicas
    assert case.says in found.reason


# --- Requests wait ----------------------------------------------------------------------------------------------------


def test_which_classes_scale_out() -> None:
    assert {
        DiagnosisClass.OVERLOADED,
        DiagnosisClass.PREEMPTION_THRASH,
        DiagnosisClass.KV_CACHE_SATURATED,
        DiagnosisClass.CONCURRENCY_CAPPED,
        DiagnosisClass.PREFILL_BOUND,
    } == SCALE_OUT_ON


@pytest.mark.parametrize("primary", sorted(SCALE_OUT_ON))
def test_each_of_them_gets_a_replica_for_requests_that_wait(primary: DiagnosisClass) -> None:
    assert desired(primary).replicas == 3


BUSY = [60.0] * 2 + [126.0] * 18
"""Requests of one engine in each window; that there were once fewer gives the step time a slope."""
FLOODED = carrying(BUSY, engines=2, waiting=queue(504.0), ttft=latency(9.0))
"""Five times as many come as the 126 that each serves in a window."""
MANY_LATE = replace(
    FLOODED, first_tokens=tuple(replace(each, mean=9.0) for each in FLOODED.first_tokens), tpot=latency(0.5)
)
NEVER = (
    DiagnosisClass.WEDGED,
    DiagnosisClass.DEFERRED_QUEUE,
    DiagnosisClass.METRICS_BLIND,
    DiagnosisClass.RUNAWAY_OUTPUTS,
    DiagnosisClass.UNCLEAR,
)


@pytest.mark.parametrize("primary", NEVER)
@pytest.mark.parametrize("seen", [FLOODED, MANY_LATE], ids=["waiting", "late"])
def test_no_number_of_replicas_helps_a_hang_another_queue_or_silence(
    primary: DiagnosisClass, seen: Observation
) -> None:
    found = desired(primary, held=100_000.0, seen=seen)
    assert found.replicas == 2
    assert "does not call for scaling" in found.reason


@pytest.mark.parametrize("primary", sorted(SCALE_OUT_ON | SLOW_TOKENS))
def test_outputs_without_an_end_get_none_even_where_they_only_contribute(primary: DiagnosisClass) -> None:
    assert desired(primary, held=300.0, seen=MANY_LATE).replicas > 2
    found = desired(primary, held=300.0, seen=MANY_LATE, beside=[DiagnosisClass.RUNAWAY_OUTPUTS])
    assert found.replicas == 2
    assert "outputs run to their token limit" in found.reason


def test_as_many_come_as_the_load_needs() -> None:
    """Each serves 126 in a window of the 189 that come: at 50 ms it could serve all of them, and wait it does."""
    seen = carrying(BUSY, engines=2, waiting=queue(63.0))
    assert desired(seen=seen).replicas == 3, "by the model two are enough, and requests wait all the same"
    assert desired(seen=seen, tpot=0.016).replicas == 4, "each serves 120 within 16 ms, and 378 come"
    assert desired(seen=seen, tpot=0.016, high=3).replicas == 3


def test_no_more_than_twice_as_many_come_at_once() -> None:
    assert desired(seen=FLOODED, tpot=0.016).replicas == 4
    assert desired(seen=FLOODED, tpot=0.016, current=1, ready=1).replicas == 2
    assert desired(seen=FLOODED, tpot=0.016, high=3).replicas == 3


@pytest.mark.parametrize(("current", "replicas"), [(3, 4), (4, 4), (9, 9)])
def test_beside_a_replica_that_starts_only_what_more_are_needed_for_is_asked_for(current: int, replicas: int) -> None:
    """Two serve, and four are needed: three are not enough, four and more are."""
    seen = carrying(BUSY, engines=2, waiting=queue(63.0))
    found = desired(seen=seen, tpot=0.016, current=current, ready=2, high=9)
    assert found.replicas == replicas


def test_the_window_itself_counts_as_waiting() -> None:
    """The class says that requests waited through the window before it was named."""
    patient = ScaleOut(waiting_for=timedelta(seconds=WINDOW))
    assert desired(held=0.0, scale_out=patient).replicas == 3
    shorter = replace(WAITING, window=WINDOW - 1)
    assert desired(held=0.0, scale_out=patient, seen=shorter).replicas == 2


@pytest.mark.parametrize("primary", sorted(SCALE_OUT_ON))
def test_a_class_that_outlasts_its_queue_adds_none(primary: DiagnosisClass) -> None:
    found = desired(primary, held=300.0, seen=observation(engine(running=39.0)))
    assert found.replicas == 2
    assert found.reason == "no requests wait for capacity"


@pytest.mark.parametrize(("took", "replicas"), [(None, 3), (70, 3), (170, 2), (940, 2)])
def test_a_queue_that_ends_before_a_replica_starts_gets_none(took: float | None, replicas: int) -> None:
    """150 wait, 2 fewer every 2 s: gone in 150 s. The newest replica took 70, 170 or 940 s."""
    ending = [150.0 + 2 * scrape for scrape in range(15)][::-1]
    seen = observation(engine(running=39.0, waiting=ending, finished=30.0))
    assert desired(seen=seen, held=120, newest=60, took=took).replicas == replicas


LATE = replace(WAITING, ttft=latency(3.0))
"""The same queue, and first tokens come after 3 s where 2 s are the objective."""


@pytest.mark.parametrize("primary", sorted(SLOW_TOKENS))
def test_a_queue_behind_slow_tokens_gets_replicas(primary: DiagnosisClass) -> None:
    found = desired(primary, seen=LATE)
    assert found.replicas == 3
    assert desired(primary, seen=WAITING).replicas == 2, "first tokens come in time"
    assert desired(primary, seen=replace(LATE, engines=(engine(),))).replicas == 2, "nobody waits"


@pytest.mark.parametrize("primary", sorted(set(DiagnosisClass) - SCALE_OUT_ON - SLOW_TOKENS))
def test_late_first_tokens_change_nothing_about_what_replicas_do_not_help(primary: DiagnosisClass) -> None:
    assert desired(primary, held=60.0, seen=LATE).replicas == 2


@pytest.mark.parametrize(("windows", "replicas"), [(3, 2), (4, 3)])
def test_a_hidden_queue_has_lasted_for_as_long_as_first_tokens_were_late(windows: int, replicas: int) -> None:
    """Not for as long as the class that hides it: slow tokens of an hour say nothing of a queue."""
    remembered = tuple(FirstTokens(mean=3.0, requests=10.0, time=AT - WINDOW * back) for back in range(windows))
    found = desired(
        DiagnosisClass.PAST_TPOT_KNEE, held=3600.0, scale_out=PATIENT, seen=replace(LATE, first_tokens=remembered)
    )
    assert found.replicas == replicas


def test_a_hidden_queue_that_ends_by_itself_gets_none() -> None:
    ending = [40.0 - 2.5 * scrape for scrape in range(15)]
    seen = replace(LATE, engines=(engine(waiting=ending),))
    found = desired(DiagnosisClass.PAST_TPOT_KNEE, seen=seen)
    assert found.replicas == 2
    assert "at its current rate" in found.reason


# --- Objectives are missed --------------------------------------------------------------------------------------------

SLOW = DiagnosisClass.PAST_TPOT_KNEE
STEADY = carrying(BUSY, engines=2)
"""Each runs 51 sequences at 15.1 ms, and at 16.6 ms at p95."""


@pytest.mark.parametrize(
    ("given", "replicas"),
    [
        pytest.param({}, 3, id="late, and each serves a fifth less within the objective"),
        pytest.param({"tpot": 0.0135}, 4, id="later still: as many as it needs"),
        pytest.param({"tpot": 0.017}, 2, id="in time"),
        pytest.param({"tpot": 0.008}, 2, id="no batch is fast enough: more replicas do not help"),
        pytest.param({"high": 2}, 2, id="never past the maximum"),
        pytest.param({"newest": WINDOW - 1}, 2, id="the window reaches behind the newest replica"),
        pytest.param({"newest": 4 * WINDOW}, 3, id="it has served long enough to tell"),
        pytest.param({"current": 3, "ready": 2}, 3, id="the one that is needed starts already"),
        pytest.param({"current": 3, "ready": 2, "tpot": 0.0135}, 4, id="one that starts is not enough"),
        pytest.param({"primary": DiagnosisClass.UNCLEAR}, 2, id="a class that replicas do not help"),
        pytest.param({"primary": DiagnosisClass.HEALTHY}, 3, id="late by so little that no class is named"),
    ],
)
def test_what_is_late_brings_replicas_where_more_of_them_make_it_faster(given: dict[str, Any], replicas: int) -> None:
    found = desired(**{"primary": SLOW, "held": 60, "seen": STEADY, "tpot": 0.0160, **given})
    assert found.replicas == replicas
    assert found.lacking == (replicas > given.get("current", 2))
    if found.lacking:
        unnamed = given.get("primary") is DiagnosisClass.HEALTHY
        told = "more was late in the last minutes than they allow" if unnamed else "A sentence."
        assert found.reason == f"objectives are missed: {told}"


@pytest.mark.parametrize(("late", "replicas"), [(1, 2), (6, 3)])
def test_half_a_minute_of_ten_is_within_the_budget(late: int, replicas: int) -> None:
    """p95 was 15.4 ms for most of ten minutes and is 16.6 now; 16 are the objective."""
    load = [60.0] * 2 + [112.0] * (18 - late) + [126.0] * late
    found = desired(SLOW, held=900, seen=carrying(load, engines=2), tpot=0.016)
    assert found.replicas == replicas
    if replicas == 2:
        assert found.reason == "late requests are within the error budget"


def test_five_minutes_before_do_not_make_up_for_what_was_late_since() -> None:
    """Over ten minutes they did: one stretch of five minutes in five was late for a day, and no replica came."""
    found = desired(SLOW, held=900, seen=carrying([90.0] * 14 + [126.0] * 6, engines=2), tpot=0.016)
    assert (found.replicas, found.reason) == (3, "objectives are missed: A sentence.")


def test_what_may_be_chance_in_five_minutes_may_not_for_half_an_hour() -> None:
    """Of 2,520 requests 5.9 % may be late by chance, and of 13,600 hardly more than 5.3: 5.6 % are."""
    for windows, replicas in ((20, 2), (60, 3)):
        load = [60.0] * (windows // 10) + [126.0] * (windows - windows // 10)
        assert desired(SLOW, held=900, seen=carrying(load, engines=2), tpot=0.01619).replicas == replicas


def late_once(seen: Observation, *, minutes_ago: float) -> Observation:
    """For three minutes, which are all of the budget of half an hour, first tokens took nine seconds."""
    end = AT - 60 * minutes_ago
    late = (replace(each, mean=9.0 if end - 180 < each.time <= end else each.mean) for each in seen.first_tokens)
    return replace(seen, first_tokens=tuple(late))


@pytest.mark.parametrize(("minutes_ago", "replicas"), [(0.5, 3), (10, 2), (25, 2)])
def test_a_burst_that_is_over_brings_no_replica(minutes_ago: float, replicas: int) -> None:
    """Two carry the load, but within noise of what they can."""
    seen = carrying([60.0] * 6 + [126.0] * 54, engines=2)
    assert desired(SLOW, held=900, seen=seen, tpot=0.017).replicas == 2
    assert desired(SLOW, held=900, seen=late_once(seen, minutes_ago=minutes_ago), tpot=0.017).replicas == replicas


@pytest.mark.parametrize(("asked", "replicas"), [(None, 3), (3600.0, 3), (301.0, 2)])
def test_what_was_late_before_the_last_scale_in_does_not_count(asked: float | None, replicas: int) -> None:
    """The newest replica went with it, and the others are older than the half hour. 5.6 % are late in it and since."""
    load = [60.0] * 6 + [126.0] * 54
    found = desired(SLOW, held=900, seen=carrying(load, engines=2), tpot=0.01619, asked=asked)
    assert found.replicas == replicas


def test_late_tokens_of_before_the_newest_replica_say_nothing_of_it() -> None:
    """It came two minutes ago, and since then all are in time."""
    seen = carrying([60.0] * 2 + [126.0] * 14 + [100.0] * 4, engines=2)
    since_then = desired(SLOW, held=900, seen=seen, tpot=0.0155, newest=4 * WINDOW + 1)
    assert since_then.reason == "late requests are within the error budget"
    before = desired(SLOW, held=900, seen=seen, tpot=0.0155)
    assert before.reason == "by the capacity model another replica would not help", "fewer come now"


def test_requests_that_began_on_fewer_replicas_tell_of_those() -> None:
    """Each took 20 s: what ended at the start of the window began so much earlier."""
    seen = replace(STEADY, e2e=latency(20.0))
    for newest, replicas in ((WINDOW + 19, 2), (WINDOW + 31, 3)):
        assert desired(SLOW, held=WINDOW, seen=seen, newest=newest, tpot=0.016).replicas == replicas


@pytest.mark.parametrize(("tail", "replicas"), [(90.0, 2), (40.0, 3)])
def test_the_slowest_of_before_say_nothing_of_more_replicas(tail: float, replicas: int) -> None:
    """A minute and more after a replica came most answers are of now, and a tenth is what an overload had slowed down.

    Four replicas had ended a queue, and these made them eight (a load that rises threefold for a quarter of an hour).
    """
    seen = replace(STEADY, e2e=latency(10.0, tail=tail))
    assert desired(SLOW, held=WINDOW, seen=seen, newest=WINDOW + 50, tpot=0.016).replicas == replicas


def test_late_tokens_bring_a_replica_with_a_queue_as_well_as_without_one() -> None:
    """First tokens are in time, so that no class is named for the queue: it must not hide the rest."""
    seen = carrying([60.0] * 4 + [126.0] * 16, engines=2)
    waits = carrying([60.0] * 4 + [126.0] * 16, engines=2, waiting=3.0)
    assert [desired(SLOW, held=900, seen=each, tpot=0.016).replicas for each in (seen, waits)] == [3, 3]
    healthy = desired(DiagnosisClass.HEALTHY, held=900, seen=waits, tpot=0.016)
    assert healthy.reason == "requests wait, but not yet for spec.scaling.scaleOut.waitingFor", "a class is named first"


def test_a_queue_that_drains_or_of_an_engine_that_hangs_brings_none_for_late_tokens() -> None:
    load = [60.0] * 4 + [126.0] * 16
    drains = carrying(load, engines=2, waiting=[20.0 - scrape for scrape in range(15)], ttft=latency(1.0))
    found = desired(SLOW, held=900, seen=drains, tpot=0.016)
    assert (found.replicas, "drains in" in found.reason) == (2, True)
    busy = carrying(load, engines=3, waiting=3.0)
    hung = replace(busy, engines=(*busy.engines[:-1], replace(busy.engines[-1], stalled_for=31.0, finished=0.0)))
    assert [desired(SLOW, held=900, current=3, seen=each, tpot=0.016).replicas for each in (busy, hung)] == [4, 3]


@pytest.mark.parametrize("long", [1, 10])
@pytest.mark.parametrize("ready", [10, 7])
def test_silent_pods_and_one_that_never_starts_do_not_hide_late_tokens(long: int, ready: int) -> None:
    """Answers of 13 s, and of 128 s, which are counted and not a rate."""
    seen = carrying([60.0] * 4 + [126.0] * 16, engines=ready)
    engines = tuple(replace(one, finished=(one.finished or 0.0) / long) for one in seen.engines)
    jobs = replace(seen, engines=engines, recent_output_length=latency(long * LENGTH), e2e=latency(long * 12.8))
    given: Mapping[str, Any] = {"held": 1800, "tpot": 0.016, "high": 32}
    assert desired(SLOW, current=10, seen=replace(jobs, expected=10), **given).replicas == 11
    failing = replace(jobs, pods=starts(CRASHES, ready=ready), expected=ready)
    assert desired(SLOW, current=ready + 1, ready=ready, seen=failing, **given).replicas == ready + 2


def starts(*failing: StartupReason, ready: int) -> PodsView:
    served = [PodStart(name=f"chat-{number}", ready_for=900.0) for number in range(ready)]
    lost = [
        PodStart(name=f"lost-{number}", ready_for=None, failure=StartupFailure(reason=reason, message="A sentence."))
        for number, reason in enumerate(failing)
    ]
    return PodsView(pods=(*served, *lost))


CRASHES, NO_NODE = StartupReason.UNKNOWN, StartupReason.UNSCHEDULABLE


@pytest.mark.parametrize(
    ("failing", "replicas"),
    [
        pytest.param([CRASHES], 5, id="it never comes, and the others do not wait for it"),
        pytest.param([], 4, id="it starts"),
        pytest.param([NO_NODE], 4, id="there is no node for the next one, either"),
        pytest.param([CRASHES, CRASHES], 4, id="several fail for a reason that the next one shares"),
    ],
)
def test_one_pod_that_never_starts_does_not_hold_the_others_back(
    failing: Sequence[StartupReason], replicas: int
) -> None:
    ready = 4 - max(1, len(failing))
    seen = replace(WAITING, pods=starts(*failing, ready=ready))
    assert desired(held=600, current=4, ready=ready, seen=seen).replicas == replicas


def test_what_is_late_adds_none_where_nothing_is_known_of_a_replica() -> None:
    unknown = replace(observation(engine(running=39.0)), first_tokens=MANY_LATE.first_tokens, ttft=latency(9.0))
    found = desired(SLOW, held=900, seen=unknown)
    assert found.replicas == 2
    assert found.reason == "nothing is known of what a replica serves within the objectives"


@pytest.mark.parametrize(("tpot", "replicas"), [(0.0168, 3), (0.030, 2)])
def test_an_interval_that_reaches_to_what_is_late_brings_one_more(tpot: float, replicas: int) -> None:
    """First tokens were late. By the middle of the interval two are just enough, by its low end they are not."""
    late = tuple(replace(each, mean=9.0) for each in STEADY.first_tokens)
    assert desired(SLOW, held=600, seen=replace(STEADY, first_tokens=late), tpot=tpot).replicas == replicas


# --- Fewer ------------------------------------------------------------------------------------------------------------

EARLIER, CALM = [90.0] * 4, [60.0] * 16
SPARE = carrying(EARLIER + CALM, engines=2)
"""Two serve 144 in a window at their highest five minutes: one alone would run 62 sequences, twice as many as ever."""
NO_KV = replace(
    SPARE,
    engines=tuple(replace(one, moments=tuple(replace(each, kv=None) for each in one.moments)) for one in SPARE.engines),
)
SPARE_FOR: Mapping[str, Any] = {"primary": DiagnosisClass.UNDERUTILIZED, "seen": SPARE}


@pytest.mark.parametrize(("rolled_out", "replicas"), [(True, 1), (False, 2)])
def test_no_replica_goes_while_an_upgrade_is_rolled_out(rolled_out: bool, replicas: int) -> None:
    """The new image did not start: the replica that went could not come back (closed loop, bad-upgrade)."""
    assert desired(**SPARE_FOR, rolled_out=rolled_out).replicas == replicas


def test_one_leaves_where_the_rest_carry_the_highest_load() -> None:
    found = desired(**SPARE_FOR)
    assert found.replicas == 1
    assert found.reason.startswith("1 replica(s) carry the highest load of the last 10m: 4.80 requests/s, of which")


@pytest.mark.parametrize(
    ("given", "replicas"),
    [
        pytest.param({"primary": DiagnosisClass.HEALTHY, "held": 599}, 2, id="between two bursts it is healthy, too"),
        pytest.param({"primary": DiagnosisClass.HEALTHY, "held": 600}, 1, id="healthy for as long as is asked for"),
        pytest.param({"primary": DiagnosisClass.UNCLEAR, "held": 600}, 2, id="it is not known what is wrong"),
        pytest.param({"newest": 599}, 2, id="the newest has not been seen for long enough"),
        pytest.param({"newest": 600}, 1, id="it has"),
        pytest.param({"asked": 599}, 2, id="the number has just changed"),
        pytest.param({"asked": 600}, 1, id="it has not"),
        pytest.param({"current": 3, "ready": 2}, 3, id="one is still starting"),
        pytest.param({"low": 2}, 2, id="as few as the user allows"),
        pytest.param({"seen": replace(SPARE, silent=("chat-9",))}, 2, id="a silent one may be the busy one"),
        pytest.param({"current": 3}, 3, id="one does not report"),
        pytest.param({"tpot": 0.0182}, 2, id="it would do by the middle of the interval, not by its low end"),
        pytest.param({"tpot": 0.0150}, 2, id="tokens would be late"),
        pytest.param({"seats": 40}, 2, id="requests would wait for a slot"),
        pytest.param({"seats": 120}, 1, id="there are slots for all"),
        pytest.param({"seen": carrying([150.0] * 10 + [60.0] * 10, engines=2)}, 2, id="the load was high minutes ago"),
        pytest.param({"seen": carrying([150.0] * 10 + [60.0] * 20, engines=2)}, 1, id="that was long ago"),
        pytest.param({"seen": carrying(minutes(40, more=2), engines=2)}, 1, id="nothing is foretold (decision 14)"),
        pytest.param({"seen": carrying(minutes(78, more=-2), engines=2)}, 1, id="its highest was ten minutes ago"),
        pytest.param({"seen": carrying([90.0] * 4 + [60.0] * 8, engines=2)}, 2, id="six minutes are not ten"),
        pytest.param({"seen": carrying([60.0] * 20, engines=2)}, 2, id="no slope was seen, and prompts are unknown"),
        pytest.param({"seen": replace(SPARE, ttft=NOT_MEASURED)}, 2, id="whether TTFT is kept is not known"),
        pytest.param({"seen": NO_KV}, 2, id="nor is whether the KV cache of one fewer has room"),
    ],
)
def test_when_one_leaves_and_when_none_does(given: dict[str, Any], replicas: int) -> None:
    assert desired(**{**SPARE_FOR, **given}).replicas == replicas


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_several_engine_cores_in_a_pod_are_one_replica(cores: int) -> None:
    """Whether each pod has one engine core or four with the same load on each: as many pods leave, and as many come."""
    calm = in_pods(carrying(EARLIER + CALM, engines=4 * cores), cores=cores)
    assert desired(DiagnosisClass.UNDERUTILIZED, current=4, seen=calm).replicas == 3
    late = in_pods(carrying([60.0] * 2 + [126.0] * 18, engines=4 * cores), cores=cores)
    assert desired(SLOW, held=600, current=4, high=32, seen=late, tpot=0.0160).replicas == 5


@pytest.mark.parametrize(("seconds", "replicas"), [(128.0, 4), (WINDOW, 6)])
def test_jobs_that_take_longer_than_a_window_are_counted_and_not_a_rate(seconds: float, replicas: int) -> None:
    """Answers of 8,000 tokens. On each of three 36 run and 37 have just come, all of which two would hold. As a rate
    they are five a second, for which seven are needed; one more comes anyway where requests wait."""
    seen = carrying([60.0] * 4 + [100.0] * 16, engines=3, waiting=queue(40.0))
    engines = tuple(replace(one, finished=(one.finished or 0.0) / 10) for one in seen.engines)
    jobs = replace(seen, engines=engines, recent_output_length=latency(10 * LENGTH), e2e=latency(seconds))
    assert desired(held=600, current=3, seen=jobs, high=16).replicas == replicas


def test_how_long_jobs_take_is_told_by_how_few_end_where_it_is_not_exported() -> None:
    """As above: 36 and 37 on each of three, and 3.3 a second end in place of 33."""
    seen = carrying([60.0] * 4 + [100.0] * 16, engines=3, waiting=queue(40.0))
    jobs = replace(
        seen,
        engines=tuple(replace(one, finished=(one.finished or 0.0) / 10) for one in seen.engines),
        recent_output_length=latency(10 * LENGTH),
        e2e=NOT_MEASURED,
    )
    assert desired(held=600, current=3, seen=jobs, high=16).replicas == 4


@pytest.mark.parametrize("per_step", [1.0, 3.0, 4.0])
def test_tokens_that_a_draft_had_right_are_no_steps(per_step: float) -> None:
    """Speculative decoding: an engine of 140 requests a window needs as many replicas as without, at the same steps."""
    busy = drafted(carrying([60.0] * 4 + [140.0] * 16, engines=2, waiting=5.0), per_step=per_step)
    assert desired(held=600, ready=1, seen=busy, high=16).reason == "1 replica(s) are still starting"
    assert desired(DiagnosisClass.UNDERUTILIZED, seen=drafted(SPARE, per_step=per_step)).replicas == 1


@pytest.mark.parametrize("primary", [DiagnosisClass.UNDERUTILIZED, DiagnosisClass.IDLE])
def test_only_one_leaves_at_a_time(primary: DiagnosisClass) -> None:
    """Idle is what it is between two requests as well, and never for ten minutes where they are five apart."""
    assert desired(primary, held=60, current=5, seen=carrying(EARLIER + [10.0] * 16, engines=5)).replicas == 4


def test_a_sequence_that_takes_much_of_the_cache_keeps_the_replica() -> None:
    """19 sequences take half of the KV cache: 34 are all that one holds, and 62 would run."""
    full = tuple(
        replace(each, moments=tuple(replace(moment, kv=0.5) for moment in each.moments)) for each in SPARE.engines
    )
    assert desired(**{**SPARE_FOR, "seen": replace(SPARE, engines=full)}).replicas == 2


@pytest.mark.parametrize(("share", "replicas"), [(0.05, 1), (0.45, 2)])
def test_prompts_that_would_fill_the_time_of_the_rest_keep_the_replica(share: float, replicas: int) -> None:
    """0.45 of the time of two is nine tenths of the time of one, and a fifth more at the peak."""
    busy = tuple(replace(each, prefill_seconds=share * each.sampled) for each in SPARE.engines)
    assert desired(**{**SPARE_FOR, "seen": replace(SPARE, engines=busy)}).replicas == replicas


@pytest.mark.parametrize(
    ("begun", "ended", "replicas"),
    [
        pytest.param(540, 240, 2, id="of the last ten minutes"),
        pytest.param(1500, 1200, 1, id="longer ago"),
        pytest.param(0, 0, 1, id="none"),
    ],
)
def test_long_prompts_of_minutes_ago_keep_the_replica(begun: float, ended: float, replicas: int) -> None:
    """Prompts take 1 % of the time now. Documents of 24,000 tokens took 37 %, with few outputs."""
    engines = tuple(replace(one, prefill_seconds=0.01 * one.sampled) for one in SPARE.engines)
    longer = [ended <= AT - (point.time or 0.0) < begun for point in SPARE.steps]
    steps = tuple(
        replace(point, running=1.5, itl=0.05, tokens=300.0, prompts=3000.0) if long else replace(point, prompts=0.5)
        for point, long in zip(SPARE.steps, longer, strict=True)
    )
    found = desired(**{**SPARE_FOR, "seen": replace(SPARE, engines=engines, steps=steps)})
    assert found.replicas == replicas
    assert ("prompts of the last 10m" in found.reason) is (replicas == 2)


@pytest.mark.parametrize(
    ("waiting", "finished", "replicas"),
    [
        pytest.param([0.0] * 10 + [300.0] * 5, None, 2, id="requests wait, and no class tells of it yet"),
        pytest.param(0.0, 0.2, 2, id="five times as many come as are served"),
        pytest.param([0.0] * 14 + [1.0], None, 1, id="one waits for a step"),
    ],
)
def test_no_replica_leaves_in_the_first_seconds_of_a_burst(
    waiting: float | list[float], finished: float | None, replicas: int
) -> None:
    seen = carrying(EARLIER + [60.0] * 16, engines=2, waiting=waiting)
    if finished is not None:
        rising = [
            replace(
                one,
                finished=(one.finished or 0.0) * finished,
                moments=tuple(replace(moment, running=10.0 * number) for number, moment in enumerate(one.moments)),
            )
            for one in seen.engines
        ]
        seen = replace(seen, engines=tuple(rising))
    assert desired(**{**SPARE_FOR, "seen": seen}).replicas == replicas


def one_is_full(*, engines: int, others: float) -> Observation:
    """Each of `engines` runs so many sequences; only in the first one 64 run, and 30 wait."""
    seen = carrying(EARLIER + [60.0] * 16, engines=engines)
    full, *rest = [
        replace(one, moments=tuple(replace(moment, running=running, waiting=waiting) for moment in one.moments))
        for index, one in enumerate(seen.engines)
        for running, waiting in [(64.0, 30.0) if index == 0 else (others, 0.0)]
    ]
    return replace(seen, engines=(full, *rest))


@pytest.mark.parametrize(
    ("engines", "others", "replicas"),
    [
        pytest.param(4, 3.0, 4, id="three of four have room"),
        pytest.param(4, 40.0, 5, id="the others are busy as well"),
        pytest.param(2, 3.0, 3, id="it is one of two"),
    ],
)
def test_one_full_engine_among_empty_ones_is_not_helped_by_another(engines: int, others: float, replicas: int) -> None:
    """Requests that are sent by their adapter or session: each replica that is added is empty, and the next one too."""
    capped = DiagnosisClass.CONCURRENCY_CAPPED
    found = desired(capped, held=600, current=engines, high=16, seen=one_is_full(engines=engines, others=others))
    assert found.replicas == replicas
    assert ("1 engine of 4 has a queue while the others have room" in found.reason) is (replicas == 4)


@pytest.mark.parametrize(("age", "replicas"), [(None, 2), (1200, 1)])
def test_a_burst_that_was_late_keeps_the_replica_while_it_is_remembered(age: float | None, replicas: int) -> None:
    """Half an hour ago, with as many replicas as now: one fewer would have been worse."""
    past = tuple(
        FirstTokens(mean=3.0 if back in (60, 61, 62, 63) else 0.2, requests=60.0, time=AT - WINDOW * back)
        for back in range(70)
    )
    found = desired(**{**SPARE_FOR, "seen": replace(SPARE, first_tokens=past * 2)}, newest=age)
    assert found.replicas == replicas


# --- Whatever comes ---------------------------------------------------------------------------------------------------


@given(
    primary=st.sampled_from(DiagnosisClass),
    held=st.floats(0, 1e5),
    current=st.integers(1, 50),
    ready=st.integers(0, 50),
    low=st.integers(1, 20),
    more=st.integers(0, 20),
    load=st.floats(1, 200),
    rise=st.floats(-2, 4),
    waiting=st.floats(0, 1000),
    tpot=st.floats(0.01, 0.1),
)
def test_the_number_is_always_inside_the_bounds_and_one_step_away(
    primary: DiagnosisClass, held: float, current: int, ready: int, low: int, more: int, load: float, rise: float,
    waiting: float, tpot: float,
) -> None:  # fmt: skip
    load_of = [max(1.0, load + rise * window) for window in range(20)]
    seen = carrying(load_of, engines=2, waiting=queue(waiting))
    high, ready = low + more, min(ready, current)
    found = desired(primary, held=held, current=current, ready=ready, low=low, high=high, seen=seen, tpot=tpot).replicas
    inside = max(low, min(high, current))
    idle = primary is DiagnosisClass.IDLE and held >= 600
    assert low <= found <= high
    assert found <= max(inside + 1, inside * 2)
    assert found >= inside - 1 or idle
    if primary in NEVER:
        assert found == inside


@given(load=st.floats(20, 100), more=st.floats(1, 3), tpot=st.floats(0.012, 0.05))
def test_more_load_never_frees_a_replica(load: float, more: float, tpot: float) -> None:
    lighter = carrying([load] * 4 + [load / 2] * 16, engines=2)
    heavier = replace(lighter, steps=tuple(replace(one, tokens=one.tokens * more) for one in lighter.steps))
    after = [desired(**{**SPARE_FOR, "seen": seen}, tpot=tpot).replicas for seen in (lighter, heavier)]
    assert after[0] <= after[1]


@given(load=st.floats(20, 60), tpot=st.floats(0.012, 0.05))
def test_what_leaves_is_not_asked_for_again_at_the_same_load(load: float, tpot: float) -> None:
    """In by the low end of the interval, out by its middle: the same measurements never say both."""
    before = carrying([load] * 4 + [load / 2] * 16, engines=2)
    if desired(**{**SPARE_FOR, "seen": before}, tpot=tpot).replicas == 1:
        after = carrying([load / 2] * 4 + [load] * 16)
        assert desired(DiagnosisClass.HEALTHY, current=1, seen=after, tpot=tpot).replicas == 1
