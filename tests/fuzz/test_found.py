"""What fuzzing has found once, each as the smallest input that shows it."""

from typing import Any

import httpx
import pytest
from tests.control.adopting_bed import NAME, adopting, theirs
from tests.fuzz.parsers import LONGEST_MESSAGE

from vllm_autotuner.api.pod_template import NO_OBJECT, TOO_DEEP, TOO_LARGE, refusal
from vllm_autotuner.api.service import InvalidService, parse_service
from vllm_autotuner.api.spec import MOST_REPLICAS
from vllm_autotuner.api.status import parse_status
from vllm_autotuner.cluster.errors import Unavailable, from_response
from vllm_autotuner.engine.catalogue import CatalogueError, read_catalogue
from vllm_autotuner.engine.flags import FlagError, human_readable_int, parse_flags
from vllm_autotuner.engine.geometry import Geometry, UnknownGeometry, geometry_from_config
from vllm_autotuner.observation.errors import Rejected, SourceError
from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.workload.pod_permissions import refused_fields

DEEP = b'{"a":' * 3000 + b"1" + b"}" * 3000


async def asked(body: bytes, *, code: int = 200) -> Any:
    transport = httpx.MockTransport(lambda request: httpx.Response(code, content=body))
    return await PrometheusSource(PrometheusAddress(url="http://prometheus:9090"), transport=transport).query(
        "up", at=0
    )


async def test_an_answer_that_is_nested_without_an_end_is_a_failed_source_and_no_crash() -> None:
    with pytest.raises(SourceError, match="is not a Prometheus API"):
        await asked(b'{"status":"success","data":' + DEEP + b"}")


@pytest.mark.parametrize("point", [f'[{10**400}, "1"]', f"[1, {10**400}]", "[1]", "[[], {}]"])
async def test_a_sample_that_is_no_number_is_a_failed_source_and_no_crash(point: str) -> None:
    with pytest.raises(SourceError, match="does not follow the Prometheus API"):
        await asked(b'{"status":"success","data":{"result":[{"metric":{},"value":' + point.encode() + b"}]}}")


async def test_the_words_of_a_server_are_cut() -> None:
    with pytest.raises(Rejected) as caught:
        await asked(b'{"status":"error","error":"' + b"x" * 100_000 + b'"}', code=400)
    assert len(str(caught.value)) < 500


def test_an_error_of_the_api_server_that_is_nested_without_an_end_is_an_error() -> None:
    assert isinstance(from_response(status=500, body=DEEP, headers={}, request="GET /x"), Unavailable)


@pytest.mark.parametrize("flag", ["--gpu-memory-utilization", "--port", "--max-num-seqs", "--max-model-len"])
@pytest.mark.parametrize("value", ["x" * 50_000, "0" * 4000, "-" + "0" * 4000])
def test_a_value_is_shown_in_part(flag: str, value: str) -> None:
    with pytest.raises(FlagError) as caught:
        parse_flags([f"{flag}={value}"])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["9" * 400 + ".5k", "9" * 4400, "9" * 4400 + "K", "0.5K", ""])
def test_a_count_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any text: callers say what to write instead
        human_readable_int(text)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), "-1e400", "nan"])
def test_a_number_of_a_status_that_no_json_has_is_unknown(value: float | str) -> None:
    found = parse_status({"measured": {"at": "2026-11-23T00:00:00Z", "running": value, "waiting": 10**30}}).measured
    assert found is not None
    assert (found.running, found.waiting) == (None, 1e30)


@pytest.mark.parametrize("amount", [10**400, "x" * 5000, {"a": ["b"] * 5000}, -1, float("nan")])
def test_an_entry_of_the_catalogue_is_refused_in_few_words(amount: object) -> None:
    row = {"label": "MI300X", "memoryGiB": amount, "bandwidthTBs": 5.3, "teraflops": 1300}
    with pytest.raises(CatalogueError, match=r"^gpus\[0\]\.memoryGiB: .* is not a positive number$") as caught:
        read_catalogue({"gpus": [row]})
    assert len(str(caught.value)) < 300


DENSE: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"layer_types": [{"a": 1}]}, id="layers that are no texts"),
        pytest.param({"sliding_window": "4096", "max_position_embeddings": 8192}, id="a window as a text"),
        pytest.param({"max_position_embeddings": "many"}, id="a length as a word"),
        pytest.param({"max_position_embeddings": -1}, id="a length below nothing"),
        pytest.param({"head_dim": -128}, id="a head below nothing"),
        pytest.param({"vocab_size": float("inf")}, id="words without an end"),
        pytest.param({"vocab_size": 10**400}, id="more words than there are"),
        pytest.param({"num_hidden_layers": [1]}, id="a list of layers"),
    ],
)
def test_an_odd_model_configuration_is_no_geometry(odd: dict[str, Any]) -> None:
    assert isinstance(geometry_from_config(DENSE), Geometry)
    found = geometry_from_config(DENSE | odd)
    assert isinstance(found, UnknownGeometry)
    assert len(found.why) < 300


def test_a_configuration_inside_of_a_configuration_without_an_end_is_no_geometry() -> None:
    config: dict[str, Any] = dict(DENSE)
    for _ in range(5000):
        config = {"text_config": config}
    assert isinstance(geometry_from_config(config), UnknownGeometry)


def test_names_in_a_pod_template_are_shown_in_part_and_compared_in_full() -> None:
    long = "a" * 50_000
    spec = {"serviceAccountName": long, "volumes": [{"name": long, "hostPath": {}}]}
    assert len(refused_fields({"spec": spec}, allowed=frozenset({f"ServiceAccount:{long[:99]}"}))) < 1000
    assert refused_fields({"spec": spec}, allowed=frozenset({f"ServiceAccount:{long}", "HostPath"})) == ""


def test_the_key_of_a_map_is_shown_in_part() -> None:
    template = {"metadata": {"labels": {"k" * 50_000: 1}}}
    found = parse_service({"metadata": {"namespace": "prod", "name": "chat"}, "spec": {"podTemplate": template}})
    assert isinstance(found, InvalidService)
    assert len(found.message) < LONGEST_MESSAGE


@pytest.mark.parametrize(("text", "why"), [("x" * 70_000, NO_OBJECT), (TOO_LARGE, TOO_LARGE), (TOO_DEEP, TOO_DEEP)])
def test_a_text_for_a_pod_template_is_no_reason_unless_it_is_one_of_ours(text: str, why: str) -> None:
    assert refusal(text) == why


async def test_a_deployment_with_more_replicas_than_a_spec_may_have_is_observed() -> None:
    found = adopting(theirs(replicas=MOST_REPLICAS + 1), tuning__mode="Recommend")
    # Its pods are not what this is about.
    found.api._roll = lambda name, body: None  # type: ignore[method-assign]
    await found.ticks(2)
    assert "ServiceFailed" not in found.told
    assert found.condition("Adopted")[0] == "True"
    assert NAME in found.condition("Adopted")[2]
