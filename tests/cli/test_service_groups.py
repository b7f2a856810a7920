import pytest
from tests.observation.fleet import NOW, Engine, fleet

from vllm_autotuner.cli.evaluate.service_groups import Grouping, ServiceName, by_labels, one_service, workload_of
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        pytest.param("chat-7d4b9c6f5-x2x9z", "chat", id="a Deployment"),
        pytest.param("chat-llama-3-8b-7d4b9c6f5-x2x9z", "chat-llama-3-8b", id="dashes in the name"),
        pytest.param("chat-0", "chat", id="a StatefulSet"),
        pytest.param("chat-12", "chat", id="its thirteenth pod"),
        pytest.param("chat", "chat", id="a bare pod"),
        pytest.param("chat-canary", "chat-canary", id="a word is no hash"),
        pytest.param("-0", "-0", id="a suffix is no name"),
        pytest.param("", "", id="no pod at all"),
    ],
)
def test_the_workload_of_a_pod(pod: str, workload: str) -> None:
    assert workload_of(pod) == workload


async def grouped(grouping: Grouping, *engines: Engine) -> dict[ServiceName, set[str]]:
    snapshot = await take_snapshot(fleet(*engines), at=NOW, settings=WindowSettings())
    return {name: {key.pod for key in keys} for name, keys in grouping(snapshot).items()}


async def test_a_label_comes_first_then_the_pod_then_the_model() -> None:
    engines = (
        Engine(pod="chat-0", labels={"app": "assistant"}),
        Engine(pod="search-0"),
        Engine(pod="", namespace="", labels={"instance": "10.0.0.1:8000"}),
    )
    assert await grouped(by_labels("app"), *engines) == {
        ServiceName("", "m"): {"10.0.0.1:8000"},
        ServiceName("demo", "assistant"): {"chat-0"},
        ServiceName("demo", "search"): {"search-0"},
    }


async def test_engines_that_ended_long_ago_are_gone_and_not_silent() -> None:
    gone = Engine(pod="chat-1", begin=NOW - 1700, end=NOW - 900)
    silent = Engine(pod="chat-2", begin=NOW - 300, end=NOW - 60)
    assert await grouped(by_labels(None), Engine(), gone, silent) == {ServiceName("demo", "chat"): {"chat-0", "chat-2"}}


async def test_a_recording_is_one_service_named_after_its_model() -> None:
    assert await grouped(one_service, Engine(pod="a-0"), Engine(pod="b-0")) == {ServiceName("", "m"): {"a-0", "b-0"}}
    nameless = Engine(labels={"model_name": ""})
    assert await grouped(one_service, nameless) == {ServiceName("", "unknown"): {"chat-0"}}
