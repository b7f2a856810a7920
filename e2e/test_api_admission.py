"""The API as the real API server keeps it: the same table of objects as for the models, and what only it can do."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api.cases import CASES, SMALLEST, Case, changed
from tests.workload.services import COMPLETE

from e2e.bed import Bed
from e2e.errors import CommandError
from e2e.operator_account import install
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.api.status import DiagnosisStatus, HistoryEntry, Outcome, Summary, VLLMServiceStatus, parse_status
from vllm_autotuner.workload.rendering import pod_selector, render_deployment, render_service

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.yaml"))
RENDERED = [path for path in EXAMPLES if "engine" in yaml.safe_load(path.read_text())["spec"]]
"""Those whose Deployment the operator renders; the others name one that exists."""


@pytest.fixture(scope="session", autouse=True)
def served(bed: Bed) -> None:
    """The CRD is there."""
    install(bed)


def created(bed: Bed, namespace: str, spec: dict[str, Any], *arguments: str, name: str = "chat") -> dict[str, Any]:
    """Create a VLLMService and return it as stored. Raises CommandError with the server's words."""
    manifest = Case(id="", name=name).manifest(namespace) | {"spec": spec}
    answer = bed.kubectl("create", "-o", "json", "-f", "-", *arguments, input=json.dumps(manifest))
    stored: dict[str, Any] = json.loads(answer)
    return stored


def read(bed: Bed, namespace: str, resource: str = "vllmservice/chat") -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(bed.kubectl("get", resource, f"--namespace={namespace}", "-o", "json"))
    return stored


def put_status(bed: Bed, namespace: str, status: dict[str, Any]) -> None:
    bed.kubectl(
        *("patch", "vllmservice/chat", f"--namespace={namespace}", "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": status})),
    )


@pytest.mark.fault("T39")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_api_server_gives_the_same_answer_as_the_models(bed: Bed, case: Case) -> None:
    manifest = json.dumps(case.manifest("default"))
    # As a client that does not look at the schema itself, so that it is the server that answers.
    arguments = ("create", "--dry-run=server", "--validate=ignore", "-f", "-")
    if case.refused is None:
        bed.kubectl(*arguments, input=manifest)
        return
    with pytest.raises(CommandError) as refusal:
        bed.kubectl(*arguments, input=manifest)
    assert case.refused.lower() in str(refusal.value).lower()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_accepts_every_example_without_an_unknown_field(bed: Bed, path: Path) -> None:
    bed.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(path))


def test_the_schema_is_structural(bed: Bed) -> None:
    crd = json.loads(bed.kubectl("get", "crd", "vllmservices.vllm-autotuner.dev", "-o", "json"))
    conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_writes_published_defaults_and_nothing_else(bed: Bed, namespace: str) -> None:
    stored = created(bed, namespace, dict(SMALLEST))
    assert stored["spec"] == {**SMALLEST, "tuning": {"mode": "Recommend"}, "deletionPolicy": "Retain"}


def test_keeps_the_pod_template_as_it_was_written(bed: Bed, namespace: str) -> None:
    template = {
        "metadata": {"labels": {"team": "chat"}, "finalizers": ["x/y"]},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "containers": [{"name": "vllm", "env": [{"name": "A", "value": "1"}], "livenessProbe": None}],
        },
    }
    stored = created(bed, namespace, {**SMALLEST, "podTemplate": template})
    assert stored["spec"]["podTemplate"] == template
    parsed = parse_service(stored)
    assert isinstance(parsed, VLLMService)
    assert parsed.spec.pod_template is not None
    assert parsed.spec.pod_template.overlay() == template


def test_status_is_written_apart_from_spec_and_survives(bed: Bed, namespace: str) -> None:
    stored = created(bed, namespace, dict(SMALLEST))
    status = VLLMServiceStatus(
        observed_generation=1,
        diagnosis=DiagnosisStatus(class_="Healthy", message="Nothing to improve."),
        history=(HistoryEntry(id="c1", knob="maxNumSeqs", outcome=Outcome.ROLLED_BACK),),
        replicas=1,
        ready_replicas=1,
        selector=pod_selector("chat"),
    )
    bed.kubectl(
        *("patch", "vllmservice/chat", f"--namespace={namespace}", "--type=merge"),
        *("-p", json.dumps({"status": {"replicas": 9}})),
    )
    assert "status" not in read(bed, namespace)
    put_status(bed, namespace, to_wire(status))
    after = read(bed, namespace)
    assert parse_status(after["status"]) == status
    assert after["metadata"]["generation"] == stored["metadata"]["generation"]


def test_columns_show_what_a_person_looks_for(bed: Bed, namespace: str) -> None:
    created(bed, namespace, dict(SMALLEST))
    put_status(
        bed,
        namespace,
        {
            "replicas": 2,
            "diagnosis": {"class": "KvCacheSaturated"},
            "measured": {"at": (datetime.now(UTC) - timedelta(minutes=7, seconds=30)).isoformat()},
            "summary": to_wire(Summary(effective="seqs=64", ttft="1.8s/2s", tpot="41ms/50ms", kv_usage="97%")),
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Serving",
                    "message": "",
                    "lastTransitionTime": "2026-03-01T12:00:00Z",
                }
            ],
        },
    )
    plain, wide = (
        bed.kubectl("get", "vllm", f"--namespace={namespace}", *arguments).splitlines()
        for arguments in ((), ("-o", "wide"))
    )
    assert plain[0].split() == ["NAME", "MODE", "DIAGNOSIS", "READY", "REPLICAS", "EFFECTIVE", "CHANGE", "AGE"]
    assert plain[1].split()[:6] == ["chat", "Recommend", "KvCacheSaturated", "True", "2", "seqs=64"]
    assert wide[0].split() == [*plain[0].split()[:-1], "TTFT", "TPOT", "KV", "MEASURED", "AGE"]
    figures = wide[1].split()[6:-1]
    assert figures[:-1] == ["1.8s/2s", "41ms/50ms", "97%"]
    assert figures[-1].startswith("7m"), "how old the figures are, in kubectl's words"


def test_an_autoscaler_sets_replicas_through_scale(bed: Bed, namespace: str) -> None:
    created(bed, namespace, dict(SMALLEST))
    put_status(bed, namespace, {"replicas": 1, "selector": pod_selector("chat")})
    bed.kubectl("scale", "vllmservice/chat", f"--namespace={namespace}", "--replicas=3")
    assert read(bed, namespace)["spec"]["replicas"] == 3
    scale = json.loads(
        bed.kubectl("get", "--raw", f"/apis/vllm-autotuner.dev/v1alpha1/namespaces/{namespace}/vllmservices/chat/scale")
    )
    assert scale["status"] == {"replicas": 1, "selector": pod_selector("chat")}


def test_an_autoscaler_is_refused_where_the_operator_scales(bed: Bed, namespace: str) -> None:
    created(bed, namespace, changed(SMALLEST, {"replicas": ..., "scaling": {"maxReplicas": 3}}))
    with pytest.raises(CommandError, match="set exactly one of replicas"):
        bed.kubectl("scale", "vllmservice/chat", f"--namespace={namespace}", "--replicas=3")


def test_two_field_managers_keep_their_own_conditions(bed: Bed, namespace: str) -> None:
    created(bed, namespace, dict(SMALLEST))
    for manager, kind in (("one", "Ready"), ("two", "Other")):
        manifest = Case(id="").manifest(namespace)
        del manifest["spec"]
        manifest["status"] = {
            "conditions": [
                {
                    "type": kind,
                    "status": "True",
                    "reason": "Test",
                    "message": "",
                    "lastTransitionTime": "2026-03-01T12:00:00Z",
                }
            ]
        }
        bed.kubectl(
            *("apply", "--server-side", "--subresource=status", f"--field-manager={manager}", "-f", "-"),
            input=json.dumps(manifest),
        )
    kinds = {condition["type"] for condition in read(bed, namespace)["status"]["conditions"]}
    assert kinds == {"Ready", "Other"}


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.name)
def test_accepts_what_is_rendered_and_finds_nothing_to_change_the_second_time(
    bed: Bed, namespace: str, path: Path
) -> None:
    raw = yaml.safe_load(path.read_text())
    raw["spec"] |= {"replicas": 0} if "replicas" in raw["spec"] else {}
    raw["spec"]["deletionPolicy"] = "Delete"
    service = parse_service(created(bed, namespace, raw["spec"]))
    assert isinstance(service, VLLMService)
    assert service.spec.engine is not None
    bodies = [render_deployment(service, service.spec.engine.knobs, 0), render_service(service)]
    for _ in range(2):
        bed.kubectl(
            *("apply", "--server-side", "--field-manager=vllm-autotuner", "--validate=strict", "-f", "-"),
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}),
        )
    assert read(bed, namespace, "deployment/chat")["metadata"]["generation"] == 1


def test_the_complete_rendering_is_a_valid_deployment(bed: Bed, namespace: str) -> None:
    service = parse_service(created(bed, namespace, COMPLETE))
    assert isinstance(service, VLLMService)
    assert service.spec.engine is not None
    body = render_deployment(service, service.spec.engine.knobs, 0)
    bed.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", input=json.dumps(body))
