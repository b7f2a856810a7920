"""max-num-seqs: each limit alone, the user's bounds last, and what is not tried again."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.builders import SCRAPES, engine, latency, observation, targets
from tests.planning.situations import (
    CAPPED,
    IN_BURSTS,
    LOWERABLE,
    SEATS,
    SLOW,
    bounds,
    line,
    situation,
    with_steps,
)

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Tuning
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import KVPool, Observation, StepPoint
from vllm_autotuner.performance.kv_use import kv_bound
from vllm_autotuner.planning.max_num_seqs import (
    PRESENT_UNKNOWN,
    lower_max_num_seqs,
    raise_max_num_seqs,
)
from vllm_autotuner.planning.platform import Platform, platform_named
from vllm_autotuner.planning.proposal import NothingToGain, Proposal


def lengths(tokens: float) -> Distribution:
    return latency(tokens, count=50)


def with_lengths(seen: Observation, *, prompt: float, output: float, tokens: int | None) -> Observation:
    engines = tuple(replace(one, pool=KVPool(tokens=tokens)) for one in seen.engines)
    return replace(seen, engines=engines, prompt_length=lengths(prompt), output_length=lengths(output))


@dataclass(frozen=True, kw_only=True)
class Bound:
    id: str
    seen: Observation
    holds: int | None


BLIND_POOL = observation(engine(running=64.0, waiting=9.0, kv=None))

BOUNDS = (
    Bound(id="64 sequences use 32 %: 0.9 of the pool holds 180", seen=CAPPED, holds=180),
    Bound(
        id="the hungriest tenth of the window counts, not its young start",
        seen=observation(engine(running=50.0, kv=[0.05] * 12 + [0.5] * 3)),
        holds=90,
    ),
    Bound(
        id="the fullest engine decides for all",
        seen=observation(
            engine(pod="chat-0", running=64.0, kv=0.32),
            engine(pod="chat-1", running=10.0, kv=0.95),
        ),
        holds=9,
    ),
    Bound(
        id="one long request on an engine that is nearly empty tells nothing",
        seen=observation(
            engine(pod="chat-0", running=64.0, kv=0.32),
            engine(pod="chat-1", running=1.0, kv=0.12),
        ),
        holds=180,
    ),
    Bound(
        id="nor does what is left of a batch",
        seen=observation(engine(running=[64.0] * 12 + [1.0] * 3, kv=[0.32] * 12 + [0.12] * 3)),
        holds=180,
    ),
    Bound(
        id="an engine without usage does not hide one that tells",
        seen=observation(engine(pod="chat-0", running=64.0, kv=None), engine(pod="chat-1", running=64.0, kv=0.32)),
        holds=180,
    ),
    Bound(
        id="without usage: the pool over the median request",
        seen=with_lengths(BLIND_POOL, prompt=800, output=200, tokens=100_000),
        holds=90,
    ),
    Bound(
        id="a pool smaller than one request still holds one",
        seen=with_lengths(BLIND_POOL, prompt=8000, output=2000, tokens=4_000),
        holds=1,
    ),
    Bound(id="neither usage nor lengths: unknown", seen=BLIND_POOL, holds=None),
    Bound(
        id="lengths without a pool: unknown",
        seen=with_lengths(BLIND_POOL, prompt=800, output=200, tokens=None),
        holds=None,
    ),
    Bound(
        id="a pool without lengths: unknown",
        seen=replace(BLIND_POOL, engines=(replace(BLIND_POOL.engines[0], pool=KVPool(tokens=9_000)),)),
        holds=None,
    ),
    Bound(
        id="nor is the smallest number that is not zero",
        seen=observation(engine(running=64.0, kv=1e-308)),
        holds=None,
    ),
    Bound(
        id="an idle gauge of zero is no use to divide by",
        seen=observation(engine(running=64.0, kv=0.0)),
        holds=None,
    ),
)


@pytest.mark.parametrize("case", BOUNDS, ids=lambda case: case.id)
def test_how_many_sequences_the_pool_holds(case: Bound) -> None:
    # One off: lengths are quantiles of a histogram, and shares are divided.
    found = kv_bound(case.seen)
    assert (found is None) == (case.holds is None)
    assert found is None or case.holds is None or abs(found - case.holds) <= max(1, 0.02 * case.holds)


@dataclass(frozen=True, kw_only=True)
class Raised:
    id: str
    seen: Observation = CAPPED
    given: dict[str, Any] = field(default_factory=dict)
    value: int | None = None
    limited_by: str | None = None
    """Of the proposal, or a part of the reason why there is none."""


def measured(seconds: float, *steps: StepPoint) -> Observation:
    """All slots in use while requests wait; tokens come at so many seconds, and the windows before were `steps`."""
    busy = engine(running=64.0, waiting=100.0, kv=0.32)
    return with_steps(observation(busy, tpot=latency(seconds), itl=latency(seconds)), steps)


STEEP = measured(0.0356, *line(16, 32, 64, base=0.010, per_sequence=0.0004))
"""The objective of 50 ms is met up to a batch of 100."""
FLAT = measured(0.0201, *line(16, 64, base=0.0175, per_sequence=4e-5), *line(65, base=0.0175, per_sequence=4e-5))
"""50 ms are far beyond what the KV cache holds."""


def stepping(*args: str) -> Platform:
    return platform_named("", gpu=None, args=args, catalogue=Catalogue())


RAISED = (
    Raised(id="without a model never more than doubled", value=128, limited_by="step limit (x2)"),
    Raised(
        id="where the model covers it, as far as the KV cache holds sequences",
        seen=FLAT,
        value=180,
        limited_by="KV cache at observed lengths",
    ),
    Raised(
        id="no more than the pool holds",
        seen=observation(engine(running=64.0, waiting=100.0, kv=0.6)),
        value=96,
        limited_by="KV cache at observed lengths",
    ),
    Raised(id="no more than the knee", seen=STEEP, value=100, limited_by="TPOT knee"),
    Raised(
        id="no more than a step computes tokens: the engine refuses to start",
        given={"platform": stepping("--max-num-batched-tokens=100")},
        value=100,
        limited_by="--max-num-batched-tokens",
    ),
    Raised(
        id="flags that nobody can read set no limit",
        given={"platform": stepping("--max-num-batched-tokens", "many")},
        value=128,
        limited_by="step limit (x2)",
    ),
    Raised(
        id="the user's maximum comes last",
        given={"tuning": bounds(1, 70 + 2)},
        value=72,
        limited_by="spec.tuning.maxNumSeqs.max",
    ),
    Raised(
        id="without bounds it is still worth saying", given={"tuning": Tuning()}, value=128, limited_by="step limit"
    ),
    Raised(
        id="a full pool leaves no room", seen=observation(engine(running=64.0, waiting=9.0, kv=0.88)), limited_by="KV"
    ),
    Raised(id="a pool that nobody knows is no room", seen=BLIND_POOL, limited_by="is not known"),
    Raised(
        id="fewer than a tenth more is noise",
        given={"tuning": bounds(1, 70)},
        limited_by="raising max-num-seqs",
    ),
    Raised(
        id="a user's maximum at the seats there are leaves nothing",
        given={"tuning": bounds(1, SEATS)},
        limited_by="spec.tuning.maxNumSeqs.max",
    ),
    Raised(
        id="a user's maximum of one is not an order to run one",
        given={"tuning": bounds(1, 1)},
        limited_by="raising max-num-seqs",
    ),
    Raised(
        id="a user's minimum past the pool is not an order to overfill it",
        seen=observation(engine(running=64.0, waiting=100.0, kv=0.6)),
        given={"tuning": bounds(110, 200)},
        limited_by="spec.tuning.maxNumSeqs.min requires 110, which KV cache at observed lengths does not allow",
    ),
    Raised(
        id="a user's minimum past one step is not an order to leap",
        given={"tuning": bounds(500, 1000)},
        limited_by="spec.tuning.maxNumSeqs.min requires 500, which step limit",
    ),
    Raised(
        id="what was rolled back above is kept clear of by half the way",
        given={"failed": [96]},
        value=80,
        limited_by="rolled back or declined at 96",
    ),
    Raised(
        id="what found too little memory above is kept clear of as well",
        given={"infeasible": [EngineKnobs(max_num_seqs=96)]},
        value=80,
        limited_by="rolled back or declined at 96",
    ),
    Raised(
        id="too little memory with a longer context says nothing",
        given={"infeasible": [EngineKnobs(max_num_seqs=96, max_model_len=8192)], "failed": [110]},
        value=87,
        limited_by="rolled back or declined at 110",
    ),
    Raised(
        id="the nearest of several counts",
        given={"failed": [128, 100, 32]},
        value=82,
        limited_by="rolled back or declined at 100",
    ),
    Raised(
        id="seats that nobody told are no value to raise",
        given={"seats": None, "failed": [65]},
        limited_by="raising max-num-seqs above the 64 that ran has no benefit",
    ),
    Raised(id="right beside what failed there is nothing to gain", given={"failed": [65]}, limited_by="at 65"),
    Raised(id="what was rolled back below does not matter", given={"failed": [32]}, value=128, limited_by="step limit"),
    Raised(
        id="tokens too slow for one sequence: seats are not what helps",
        seen=measured(0.1064, *line(16, 32, 64, base=0.1, per_sequence=0.0001)),
        limited_by="over the objective even for a single sequence",
    ),
    Raised(
        id="seats that nobody told are those that were seen taken",
        given={"seats": None},
        value=128,
        limited_by="step limit",
    ),
)


@pytest.mark.parametrize("case", RAISED, ids=lambda case: case.id)
def test_raising(case: Raised) -> None:
    found = raise_max_num_seqs(situation(case.seen, **case.given))
    match found:
        case Proposal():
            assert (found.value, found.target) == (case.value, ChangeTarget.TTFT)
            assert (case.limited_by or "") in (found.limited_by or "")
            assert (case.limited_by is None) == (found.limited_by is None)
        case NothingToGain(why):
            assert case.value is None, why
            assert case.limited_by is not None
            assert case.limited_by in why


LOWERED = (
    Raised(id="down to the knee", seen=LOWERABLE, value=43),
    Raised(
        id="a batch below those seen is no further than half",
        seen=with_steps(
            replace(LOWERABLE, tpot=latency(0.12, count=400)), line(40, 64, 80, base=0.01, per_sequence=0.0008)
        ),
        value=32,
        limited_by="step limit",
    ),
    Raised(
        id="more comes than so few slots finish",
        seen=replace(
            LOWERABLE,
            engines=(engine(running=64.0, kv=0.32, finished=585.6, generation_tokens=29_280.0),),
            itl=latency(0.0612),
        ),
        given={"tuning": bounds(1, 32)},
        limited_by="a replica finishes 17.98 requests/s, and 20.91 come",
    ),
    Raised(
        id="long answers hold the slots for which the others would wait",
        seen=replace(LOWERABLE, engines=(engine(running=IN_BURSTS, kv=0.32),)),
        limited_by="requests would wait 5.4 s for a slot",
    ),
    Raised(id="without a model: half, as a guess", seen=SLOW, value=32),
    Raised(
        id="the user's minimum comes last",
        seen=LOWERABLE,
        given={"tuning": bounds(50, 128)},
        value=50,
        limited_by="spec.tuning.maxNumSeqs.min",
    ),
    Raised(
        id="a user's minimum at the batch leaves nothing",
        seen=LOWERABLE,
        given={"tuning": bounds(62, 128)},
        limited_by="spec.tuning.maxNumSeqs.min",
    ),
    Raised(
        id="a user's maximum of one is not an order to leap",
        seen=LOWERABLE,
        given={"tuning": bounds(1, 1)},
        limited_by="spec.tuning.maxNumSeqs.max requires 1, which the smallest batch seen",
    ),
    Raised(
        id="what was rolled back below is kept clear of by half the way",
        seen=LOWERABLE,
        given={"failed": [48, 43, 20]},
        value=56,
        limited_by="rolled back or declined at 48",
    ),
    Raised(
        id="right above what failed there is nothing to gain", seen=LOWERABLE, given={"failed": [60]}, limited_by="60"
    ),
    Raised(
        id="a step that is slow by itself gains nothing from a smaller batch",
        seen=with_steps(SLOW, line(16, 32, 64, base=0.06, per_sequence=0.0003)),
        limited_by="a smaller batch does not help",
    ),
    Raised(
        id="while the load ramps up, the step is counted from where it has come to",
        seen=observation(
            engine(running=[2.0 * scrape + 4 for scrape in range(SCRAPES)]), tpot=latency(0.08), itl=latency(0.08)
        ),
        value=16,
        limited_by="",
    ),
    Raised(
        id="the tail that the busiest engine makes counts for all",
        seen=with_steps(
            observation(
                engine(pod="chat-0", running=8.0, finished=600.0),
                engine(pod="chat-1", running=64.0, finished=600.0),
                tpot=latency(0.0612, count=400),
                itl=latency(0.056),
            ),
            LOWERABLE.steps,
        ),
        value=24,
    ),
)


@pytest.mark.parametrize("case", LOWERED, ids=lambda case: case.id)
def test_lowering(case: Raised) -> None:
    found = lower_max_num_seqs(situation(case.seen, **case.given))
    match found:
        case Proposal():
            assert (found.value, found.target) == (case.value, ChangeTarget.TPOT)
            assert (case.limited_by or "") in (found.limited_by or "")
        case NothingToGain(why):
            assert case.value is None, why
            assert case.limited_by is not None
            assert case.limited_by in why


@pytest.mark.parametrize(("later", "value"), [(1.0, 43), (1.06, 40), (1.2, 35)])
def test_tokens_that_come_later_than_any_window_explains_lower_the_knee(later: float, value: int) -> None:
    """Prompts have grown: tokens come that much later at every batch."""
    grown = replace(LOWERABLE, tpot=latency(0.0612 * later, count=400), itl=latency(0.042 * later))
    found = lower_max_num_seqs(situation(grown))
    assert isinstance(found, Proposal)
    assert found.value == value


@pytest.mark.parametrize(("tail", "value"), [(None, 43), (0.065, 41)])
def test_a_tail_moves_the_knee_down(tail: float | None, value: int) -> None:
    """The model knows means; an objective at p95 needs a mean that is faster by the observed ratio."""
    seen = replace(LOWERABLE, tpot=latency(0.0612, count=400, tail=tail))
    found = lower_max_num_seqs(situation(seen, against=targets(tpot=0.05)))
    assert isinstance(found, Proposal)
    assert found.value == value


SEEN_TO_18 = with_steps(
    observation(engine(running=18.0, waiting=40.0, kv=0.1), tpot=latency(0.0196), itl=latency(0.0194)),
    line(4, 9, 18, base=0.014, per_sequence=0.0003),
)
"""Slots for 18 where the KV cache holds 162, and 50 ms are met at any batch that the line may be trusted for."""


@pytest.mark.parametrize(
    ("seen", "value", "limited_by"),
    [
        pytest.param(SEEN_TO_18, 72, "what the step-time model covers", id="four times the batch seen, at most"),
        pytest.param(with_steps(SEEN_TO_18, ()), 36, "step limit (x2)", id="no model: twice the value"),
    ],
)
def test_a_step_goes_as_far_as_the_model_covers(seen: Observation, value: int, limited_by: str) -> None:
    """From 18 slots to 55 in one change, not in two with a cooldown between them (cap-bound)."""
    found = raise_max_num_seqs(situation(seen, seats=18))
    assert isinstance(found, Proposal)
    assert (found.value, found.limited_by) == (value, limited_by)


@dataclass(frozen=True, kw_only=True)
class Sure:
    id: str
    seen: Observation
    confidence: Confidence
    seats: int | None = SEATS


CONFIDENCES = (
    Sure(
        id="a batch that was seen",
        seen=with_steps(CAPPED, line(16, 64, 160, base=0.0175, per_sequence=1e-5)),
        confidence=Confidence.HIGH,
    ),
    Sure(id="a batch beyond what was seen", seen=STEEP, confidence=Confidence.MEDIUM),
    Sure(id="no model", seen=CAPPED, confidence=Confidence.MEDIUM),
    Sure(
        id="seats that nobody told",
        seen=with_steps(CAPPED, line(16, 64, 160, base=0.0175, per_sequence=1e-5)),
        seats=None,
        confidence=Confidence.MEDIUM,
    ),
)


@pytest.mark.parametrize("case", CONFIDENCES, ids=lambda case: case.id)
def test_how_sure_raising_is(case: Sure) -> None:
    found = raise_max_num_seqs(situation(case.seen, seats=case.seats))
    assert isinstance(found, Proposal)
    assert found.confidence is case.confidence


LOWERING_CONFIDENCES = (
    Sure(id="a batch that was seen", seen=LOWERABLE, confidence=Confidence.HIGH),
    Sure(
        id="a batch below what was seen",
        seen=with_steps(
            replace(LOWERABLE, tpot=latency(0.12, count=400)), line(40, 64, 80, base=0.010, per_sequence=0.0008)
        ),
        confidence=Confidence.LOW,
    ),
    Sure(id="two windows are no model", seen=with_steps(SLOW, LOWERABLE.steps[:2]), confidence=Confidence.LOW),
)


@pytest.mark.parametrize("case", LOWERING_CONFIDENCES, ids=lambda case: case.id)
def test_how_sure_lowering_is(case: Sure) -> None:
    found = lower_max_num_seqs(situation(case.seen))
    assert isinstance(found, Proposal)
    assert found.confidence is case.confidence


@pytest.mark.parametrize(
    ("tuning", "applies"), [(bounds(1, 4096), True), (Tuning(), False)], ids=["bounds", "no bounds"]
)
def test_a_knob_without_bounds_is_recommended_only(tuning: Tuning, applies: bool) -> None:
    for found in (
        raise_max_num_seqs(situation(tuning=tuning)),
        lower_max_num_seqs(situation(LOWERABLE, tuning=tuning)),
    ):
        assert isinstance(found, Proposal)
        assert (found.recommend_only == "") is applies


def test_what_runs_is_the_least_that_may_run_so_only_a_raise_of_an_unknown_value_is_doubtful() -> None:
    raised = raise_max_num_seqs(situation(seats=None))
    lowered = lower_max_num_seqs(situation(LOWERABLE, seats=None))
    assert isinstance(raised, Proposal)
    assert isinstance(lowered, Proposal)
    assert (raised.recommend_only, lowered.recommend_only) == (PRESENT_UNKNOWN, "")


def test_failed_seats_are_the_numbers_of_max_num_seqs_whatever_a_person_wrote_into_the_status() -> None:
    failed = (("maxNumSeqs", "96"), ("maxNumSeqs", "many"), ("maxNumSeqs", "9" * 30), ("maxModelLen", "8192"))
    assert situation(failed_values=failed).failed_seats == (96,)


def test_what_nobody_gave_flags_of_is_not_raised_as_that_may_lower_it() -> None:
    found = raise_max_num_seqs(replace(situation(seats=None), flags_known=False))
    assert isinstance(found, NothingToGain)
    assert found.why.startswith("--max-num-seqs=128: the present value is not known, and may be higher")
