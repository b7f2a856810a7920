"""States that look like something else, and what they were taken for elsewhere (issues of other autoscalers)."""

import pytest
from tests.builders import NOT_MEASURED, SCRAPES, engine, latency, named, no_answer, nobody, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Profile
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.situation import Situation

COMING = [0, 0, 3, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 0, 0]
"""A queue that is there in 3 of 15 scrapes."""
HALF = [0, 1] * 7 + [1]
FILLING = [0.1 + 0.7 * scrape / SCRAPES for scrape in range(SCRAPES)]
"""KV usage while the chunks of one long prompt are computed."""
QUEUE_OF_BURSTS = [9.0 if scrape % 5 < 3 else 0.0 for scrape in range(SCRAPES)]
"""Requests wait in 60 % of the scrapes."""
IN_BURSTS = [64.0 if waiting else 50.0 for waiting in QUEUE_OF_BURSTS]
"""All seats are taken while they do."""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # --- hangs look like load, and like idleness ---
        pytest.param(
            observation(engine(running=39, waiting=500, stalled_for=130)),
            DiagnosisClass.WEDGED,
            id="a full queue and no token for two minutes is a hang, not load",
        ),
        pytest.param(
            observation(engine(running=39, waiting=0, stalled_for=130, finished=0)),
            DiagnosisClass.WEDGED,
            id="a stopped core freezes its gauges: waiting may read zero",
        ),
        pytest.param(
            observation(engine(running=0, waiting=40, kv=0.0, stalled_for=40, finished=0)),
            DiagnosisClass.WEDGED,
            id="requests wait and none runs: a scheduler that does not admit",
        ),
        pytest.param(
            observation(engine(running=39, waiting=0, stalled_for=30, finished=0)),
            DiagnosisClass.UNCLEAR,
            id="half a minute without a token is no hang yet, and not healthy either",
        ),
        pytest.param(
            observation(engine(running=39, waiting=0, stalled_for=29, finished=0)),
            DiagnosisClass.HEALTHY,
            id="a pause shorter than the window is a pause",
        ),
        pytest.param(
            observation(engine(running=1, kv=FILLING, stalled_for=130, finished=0)),
            DiagnosisClass.UNCLEAR,
            id="one prompt that fills the cache for two minutes is no hang",
        ),
        pytest.param(
            observation(engine(pod="chat-0"), engine(pod="chat-1", running=9, waiting=60, stalled_for=200)),
            DiagnosisClass.WEDGED,
            id="one of two engines hangs",
        ),
        pytest.param(
            observation(engine(running=60, waiting=21, kv=0.998, stalled_for=4)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="tokens that moved 4 s ago are no hang",
        ),
        pytest.param(
            observation(engine(running=39, waiting=30, kv=0.5, stalled_for=None)),
            DiagnosisClass.UNCLEAR,
            id="without token counters a hang is not invented",
        ),
        pytest.param(
            observation(engine(running=0, kv=0.0, finished=0, generation_tokens=0, prompt_tokens=0, stalled_for=300)),
            DiagnosisClass.IDLE,
            id="no token because nobody asks is no hang",
        ),
        pytest.param(
            observation(engine(running=0, kv=0.0, finished=0, generation_tokens=0, prompt_tokens=9_000)),
            DiagnosisClass.HEALTHY,
            id="embeddings begin and end between two scrapes, and only prompt tokens tell of them",
        ),
        pytest.param(
            observation(
                engine(running=0, kv=0.0, finished=None, generation_tokens=None, prompt_tokens=None, stalled_for=None)
            ),
            DiagnosisClass.HEALTHY,
            id="without counters nobody knows whether it is idle",
        ),
        # --- prefill-only load ---
        pytest.param(
            observation(engine(running=8, waiting=25, kv=0.32, generation_tokens=200), ttft=latency(8.0)),
            DiagnosisClass.OVERLOADED,
            id="prefill-only load at 32 % KV with free seats is neither the pool nor the seats",
        ),
        # --- waiting for something else ---
        pytest.param(
            observation(engine(waiting=0, deferred=12)),
            DiagnosisClass.DEFERRED_QUEUE,
            id="a queue that waits for a grammar is no load",
        ),
        pytest.param(
            observation(engine(waiting=21, deferred=3, running=60, kv=0.998)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="a few deferred beside a real queue do not hide it",
        ),
        pytest.param(
            observation(
                engine(pod="chat-0", deferred=1),
                *(engine(pod=f"chat-{n}", running=60, waiting=50, kv=0.998) for n in (1, 2, 3)),
            ),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="one deferred request in one engine does not hide the queues of the others",
        ),
        # --- silence ---
        pytest.param(observation(problem=no_answer()), DiagnosisClass.METRICS_BLIND, id="a failing source is not idle"),
        pytest.param(nobody(), DiagnosisClass.METRICS_BLIND, id="no engine is not idle"),
        pytest.param(nobody(silent=("chat-0",)), DiagnosisClass.METRICS_BLIND, id="an engine that went silent"),
        pytest.param(nobody(expected=0), DiagnosisClass.METRICS_BLIND, id="no pod is ready yet"),
        pytest.param(
            observation(engine(), expected=2), DiagnosisClass.METRICS_BLIND, id="one of two pods is not more than half"
        ),
        pytest.param(
            observation(engine(pod="chat-0"), engine(pod="chat-1"), expected=3),
            DiagnosisClass.HEALTHY,
            id="two of three pods are enough",
        ),
        pytest.param(
            observation(engine(running=0, kv=0.0, finished=0, generation_tokens=0, prompt_tokens=0), expected=1),
            DiagnosisClass.IDLE,
            id="all zero and fresh is idle, not blind",
        ),
        pytest.param(
            observation(engine(running=0, kv=0.0, finished=2, generation_tokens=50)),
            DiagnosisClass.HEALTHY,
            id="a short request between two scrapes is not idle",
        ),
        # --- missing is never zero ---
        pytest.param(
            observation(engine(waiting=21, kv=None, preemptions=None), ttft=latency(9.0)),
            DiagnosisClass.UNCLEAR,
            id="an unknown pool is not an empty one: no seats are offered",
        ),
        pytest.param(
            observation(engine(running=60, waiting=21, kv=None, preemptions=40)),
            DiagnosisClass.PREEMPTION_THRASH,
            id="preemptions alone tell a full pool",
        ),
        pytest.param(
            observation(ttft=NOT_MEASURED, tpot=NOT_MEASURED, itl=NOT_MEASURED),
            DiagnosisClass.HEALTHY,
            id="nothing waits and latencies are not exported",
        ),
        pytest.param(
            observation(engine(running=[63.0, 64.0, 62.0, 63.0, 61.0] * 3, waiting=200, kv=0.24), ttft=latency(9.0)),
            DiagnosisClass.CONCURRENCY_CAPPED,
            id="short requests leave a seat empty at every step: nearly all taken is all taken",
        ),
        pytest.param(
            observation(engine(running=IN_BURSTS, waiting=QUEUE_OF_BURSTS, kv=0.24), ttft=latency(9.0)),
            DiagnosisClass.CONCURRENCY_CAPPED,
            id="a queue for seats that comes and goes, and makes first tokens late",
        ),
        pytest.param(
            observation(engine(running=IN_BURSTS, waiting=QUEUE_OF_BURSTS, kv=0.24), ttft=latency(0.2)),
            DiagnosisClass.UNCLEAR,
            id="the same where first tokens are in time: traffic, no limit",
        ),
        pytest.param(
            observation(engine(running=40.0, waiting=QUEUE_OF_BURSTS, kv=0.24), ttft=latency(9.0)),
            DiagnosisClass.UNCLEAR,
            id="the same beside free seats: it waits for something else",
        ),
        pytest.param(
            observation(engine(running=[57.0, 56.0] * 7 + [57.0], waiting=200, kv=0.24), ttft=latency(9.0)),
            DiagnosisClass.OVERLOADED,
            id="with a tenth of the seats free, something else holds the queue back",
        ),
        # --- queues that come and go ---
        pytest.param(observation(engine(waiting=COMING)), DiagnosisClass.HEALTHY, id="a queue now and then is traffic"),
        pytest.param(
            observation(engine(waiting=HALF)),
            DiagnosisClass.UNCLEAR,
            id="a queue half of the time is not healthy",
        ),
        pytest.param(
            observation(engine(kv=0.95)), DiagnosisClass.UNCLEAR, id="a full pool without a queue is not healthy"
        ),
        # --- several engines ---
        pytest.param(
            observation(engine(pod="chat-0", running=60, waiting=21, kv=0.998), engine(pod="chat-1")),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="one of two engines is saturated: the average would hide it",
        ),
        pytest.param(
            observation(
                engine(pod="chat-0", running=60, waiting=21, kv=0.998),
                engine(pod="chat-1", running=64, waiting=21, kv=0.5),
            ),
            DiagnosisClass.OVERLOADED,
            id="two engines with two limits: no single setting removes both",
        ),
        # --- seats ---
        pytest.param(
            observation(engine(running=[4] * 13 + [3] * 2, waiting=40, kv=0.016)),
            DiagnosisClass.OVERLOADED,
            id="4 run and 64 seats were told: the seats are not the limit",
        ),
    ],
)
def test_is_not_taken_for_something_else(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_an_unknown_max_num_seqs_is_inferred_with_less_confidence() -> None:
    found = named(observation(engine(running=[4] * 13 + [3] * 2, waiting=40, kv=0.016)), seats=None)
    assert (found.primary, found.confidence) == (DiagnosisClass.CONCURRENCY_CAPPED, Confidence.MEDIUM)
    assert "not known" in found.message


def test_a_queue_that_comes_and_goes_is_told_as_such() -> None:
    bursts = observation(engine(running=IN_BURSTS, waiting=QUEUE_OF_BURSTS, kv=0.24), ttft=latency(9.0))
    assert named(bursts).message.startswith("All 64 slots (max-num-seqs) are in use whenever requests wait (up to 9);")
    standing = observation(engine(running=64, waiting=200, kv=0.24), ttft=latency(9.0))
    assert named(standing).message.startswith("All 64 slots (max-num-seqs) are in use and up to 200 requests wait;")


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        pytest.param(observation(engine(running=64, waiting=200, kv=None)), "without KV cache usage", id="KV usage"),
        pytest.param(observation(engine(running=64, waiting=200, kv=0.0)), "or 0 under load", id="KV at 0 under load"),
        pytest.param(
            observation(engine(running=64, waiting=200, kv=0.3), ttft=NOT_MEASURED), "without TTFT", id="TTFT"
        ),
        pytest.param(
            observation(engine(running=64, waiting=200, kv=0.3), tpot=NOT_MEASURED, itl=NOT_MEASURED),
            "without inter-token latency",
            id="ITL",
        ),
        pytest.param(
            observation(
                engine(running=64, waiting=200, kv=None), ttft=NOT_MEASURED, tpot=NOT_MEASURED, itl=NOT_MEASURED
            ),
            "without KV cache usage, TTFT, inter-token latency (",
            id="all three, as of a router or a probe",
        ),
        pytest.param(
            observation(engine(running=64, waiting=200, kv=0.3, stalled_for=60)),
            "no token was computed for 60 s: the engine may hang, which is certain after 120 s; look for 160 s",
            id="no token in the window, slots in use",
        ),
        pytest.param(
            observation(engine(running=39, waiting=200, kv=0.99, stalled_for=60)),
            "no token was computed for 60 s",
            id="no token in the window, the KV cache full",
        ),
    ],
)
def test_what_decides_and_is_missing_vetoes_the_class_and_any_proposal(seen: Observation, says: str) -> None:
    found = named(seen)
    assert (found.primary, found.confidence) == (DiagnosisClass.UNCLEAR, Confidence.LOW)
    assert says in found.message
    knobs = EngineKnobs(max_num_seqs=64)
    case = Case(observation=seen, targets=targets(), knobs=knobs)
    situation = Situation(case=case, diagnosis=found)
    assert plan(situation).proposal is None


def test_a_running_count_that_moves_is_no_cap() -> None:
    seen = observation(engine(running=[20, 31, 25, 28, 22, 30, 27, 24, 29, 26, 23, 21, 28, 30, 25], waiting=40, kv=0.3))
    assert named(seen, seats=None).primary is DiagnosisClass.OVERLOADED


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(observation(engine(waiting=21, running=39, kv=0.998), silent=("chat-1",)), id="the pool"),
        pytest.param(observation(silent=("chat-1",)), id="healthy"),
    ],
)
def test_a_silent_engine_lowers_confidence_and_not_the_verdict(seen: Observation) -> None:
    found = named(seen)
    assert found.confidence is Confidence.MEDIUM
    assert found.primary in (DiagnosisClass.KV_CACHE_SATURATED, DiagnosisClass.HEALTHY)


def test_blind_is_said_with_what_to_do_and_alone() -> None:
    found = named(observation(problem=no_answer("http://prometheus did not answer")))
    assert "http://prometheus did not answer" in found.message
    assert found.contributing == ()
    silent = named(nobody(silent=("chat-0",)))
    assert "Check the scraping" in silent.message
    assert silent.confidence is named(nobody()).confidence is Confidence.HIGH
    assert [fact.note for fact in silent.evidence] == ["silent: chat-0"]


def test_a_queue_that_has_drained_explains_its_ttft() -> None:
    drained = [30, 20, 10, 5, 1] + [0] * 10
    found = named(observation(engine(waiting=drained), ttft=latency(12.0)))
    assert found.primary is DiagnosisClass.HEALTHY
    assert found.confidence is Confidence.MEDIUM
    assert "drained" in found.message


def test_what_is_unclear_names_what_contradicts() -> None:
    found = named(observation(engine(running=8, kv=0.3), ttft=latency(6.0), prefill_time=latency(0.02)))
    assert found.primary is DiagnosisClass.UNCLEAR
    assert found.confidence is Confidence.LOW
    assert "TTFT" in found.message
    assert {one.name for one in found.evidence} == {"TTFT p95", "TPOT p95"}


def test_a_default_objective_says_that_it_is_one() -> None:
    notes = {one.name: one.note for one in named(observation()).evidence}
    assert notes["TTFT p95"] == "default objective of the profile"
    told = {one.name: one.note for one in named(observation(), against=targets(ttft=2.0)).evidence}
    assert told["TTFT p95"] == ""


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param(Profile.LATENCY, DiagnosisClass.PREFILL_BOUND, id="4 s are too long for a chat"),
        pytest.param(Profile.BURSTY, DiagnosisClass.HEALTHY, id="4 s are expected in a burst"),
        pytest.param(Profile.THROUGHPUT, DiagnosisClass.HEALTHY, id="4 s do not matter in a batch job"),
    ],
)
def test_the_profile_decides_how_long_a_first_token_may_take(profile: Profile, expected: DiagnosisClass) -> None:
    assert named(observation(ttft=latency(4.0)), against=targets(profile=profile)).primary is expected
