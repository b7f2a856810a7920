"""What Kubernetes says about pods, and what is then not said about metrics: StartupFailure, ColdStart, MetricsBlind."""

import pytest
from tests.builders import NOW, engine, latency, named, no_answer, nobody, observation

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.startup_log import StartupFailure, StartupReason
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.pod_starts import PodStart, PodsView

TOO_SMALL = StartupFailure(
    reason=StartupReason.INSUFFICIENT_KV_CACHE,
    message="To serve at least one request ...",
    suggested_max_model_len=1152,
)
WARM_UP = 60.0
OLD, YOUNG = 3600.0, 20.0


def ready(name: str = "chat-0", since: float = OLD) -> PodStart:
    return PodStart(name=name, ready_for=since)


def starting(name: str = "chat-0") -> PodStart:
    return PodStart(name=name, ready_for=None)


def failing(name: str = "chat-0", failure: StartupFailure = TOO_SMALL) -> PodStart:
    return PodStart(name=name, ready_for=None, failure=failure)


def pods(*starts: PodStart, warm_up: float | None = WARM_UP) -> PodsView:
    return PodsView(pods=starts, warm_up=warm_up)


FULL = engine(running=60, waiting=21, kv=0.998)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            nobody(pods=pods(failing()), expected=0), DiagnosisClass.STARTUP_FAILURE, id="the only pod does not start"
        ),
        pytest.param(
            nobody(pods=pods(failing(), starting("chat-1")), expected=0),
            DiagnosisClass.STARTUP_FAILURE,
            id="one fails, one still starts, none serves",
        ),
        pytest.param(
            observation(pods=pods(ready(), failing("chat-1"), failing("chat-2"))),
            DiagnosisClass.STARTUP_FAILURE,
            id="two fail beside one that serves",
        ),
        pytest.param(
            observation(pods=pods(ready(), failing("chat-1"))),
            DiagnosisClass.HEALTHY,
            id="a new pod that fails beside an old one that serves: what is served is what counts",
        ),
        pytest.param(
            nobody(pods=pods(starting()), expected=0), DiagnosisClass.COLD_START, id="the first pod still loads"
        ),
        pytest.param(
            nobody(pods=pods(ready(since=5.0)), expected=0),
            DiagnosisClass.COLD_START,
            id="ready for 5 s and not scraped yet",
        ),
        pytest.param(
            nobody(pods=pods(ready()), expected=1),
            DiagnosisClass.METRICS_BLIND,
            id="ready for an hour and silent: the scrape is at fault, not the start",
        ),
        pytest.param(nobody(pods=pods(), expected=0), DiagnosisClass.METRICS_BLIND, id="no pod at all"),
        pytest.param(
            observation(problem=no_answer(), pods=pods(failing())),
            DiagnosisClass.METRICS_BLIND,
            id="a source that fails comes first",
        ),
        pytest.param(
            observation(engine(waiting=9), ttft=latency(9.0), pods=pods(ready(since=YOUNG))),
            DiagnosisClass.COLD_START,
            id="a queue and late tokens of a fresh pod mean nothing yet",
        ),
        pytest.param(
            observation(FULL, pods=pods(ready(since=WARM_UP - 1))), DiagnosisClass.COLD_START, id="a second before"
        ),
        pytest.param(
            observation(FULL, pods=pods(ready(since=WARM_UP))),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="warmed up: now it counts",
        ),
        pytest.param(
            observation(FULL, pods=pods(ready(since=YOUNG), warm_up=10.0)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="the service's own warm-up wins",
        ),
        pytest.param(
            observation(FULL, pods=pods(ready(since=59.0), warm_up=None)),
            DiagnosisClass.COLD_START,
            id="without one it is a minute",
        ),
        pytest.param(
            observation(FULL, engine(pod="chat-1"), pods=pods(ready(since=OLD), ready("chat-1", since=YOUNG))),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="one old pod is enough to judge by",
        ),
        pytest.param(
            observation(FULL, pods=pods(ready("another", since=YOUNG))),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="an engine whose pod nobody knows is not called fresh",
        ),
        # --- without Kubernetes: the start of the process ---
        pytest.param(
            observation(engine(waiting=9, started=NOW - 59)), DiagnosisClass.COLD_START, id="started 59 s ago"
        ),
        pytest.param(
            observation(engine(running=60, waiting=21, kv=0.998, started=NOW - 60)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="started a minute ago",
        ),
        pytest.param(
            observation(engine(started=NOW - 9), engine(pod="chat-1")),
            DiagnosisClass.HEALTHY,
            id="a start that nobody knows is not fresh",
        ),
        pytest.param(observation(engine(started=NOW + 30)), DiagnosisClass.COLD_START, id="a clock that is ahead"),
    ],
)
def test_is_named(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_a_failed_start_tells_reason_words_and_the_length_that_would_do() -> None:
    found = named(nobody(pods=pods(failing(), starting("chat-1")), expected=0))
    assert found.message.startswith("1 of 2 pod(s) fail to start. InsufficientKVCache: To serve at least")
    facts = {one.name: (one.value, one.note) for one in found.evidence}
    assert facts["pods that fail to start"] == (1, "InsufficientKVCache")
    assert facts["largest max-model-len that the engine accepts"] == (1152, "")
    assert found.confidence is Confidence.HIGH


def test_an_unknown_cause_is_no_confident_one() -> None:
    unknown = StartupFailure(reason=StartupReason.UNKNOWN, message="KeyError: 'layers.0'")
    found = named(nobody(pods=pods(failing(failure=unknown)), expected=0))
    assert (found.primary, found.confidence) == (DiagnosisClass.STARTUP_FAILURE, Confidence.MEDIUM)
    assert "KeyError: 'layers.0'" in found.message


def test_a_pod_that_fails_beside_others_that_serve_contributes() -> None:
    found = named(observation(FULL, pods=pods(ready(), failing("chat-1"))))
    assert found.primary is DiagnosisClass.KV_CACHE_SATURATED
    assert [part.diagnosis for part in found.contributing] == [DiagnosisClass.STARTUP_FAILURE]


def test_nothing_known_is_said_with_what_contributes() -> None:
    odd = observation(engine(kv=0.95), pods=pods(ready(), failing("chat-1")))
    found = named(odd)
    assert found.primary is DiagnosisClass.UNCLEAR
    assert [part.diagnosis for part in found.contributing] == [DiagnosisClass.STARTUP_FAILURE]
