"""What is applied to the cluster for a service, and what makes its pods restart."""

from typing import Any

import pytest
from tests.workload.services import service

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.change.trial_deployments import Track, Trial
from vllm_autotuner.engine.command_line import command_line
from vllm_autotuner.workload.hashing import RENDERING_VERSION, config_hash, recorded_hash
from vllm_autotuner.workload.labels import (
    CHANGE,
    CONFIG_HASH,
    HASH_VERSION,
    METADATA_HASH,
    SERVICE,
    SERVICE_UID,
    STABLE,
    TRACK,
)
from vllm_autotuner.workload.rendering import (
    NothingToRender,
    pod_selector,
    render_deployment,
    render_service,
    render_trial,
)


def deployment(of: VLLMService) -> dict[str, Any]:
    """The Deployment with the values of the spec."""
    assert of.spec.engine is not None
    return render_deployment(of, of.spec.engine.knobs, of.spec.replicas)


def engine_of(rendered: dict[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = rendered["spec"]["template"]["spec"]["containers"]
    return next(container for container in containers if container["name"] == "vllm")


def test_the_command_line_is_model_then_the_users_flags_then_tuned_ones() -> None:
    assert engine_of(deployment(service()))["args"] == [
        "Qwen/Qwen3-32B",
        "--served-model-name",
        "qwen3-32b",
        "--revision",
        "main",
        "--enable-prefix-caching",
        "--max-num-seqs=128",
        "--max-model-len=16384",
        "--kv-cache-dtype=auto",
        "--tensor-parallel-size=2",
    ]


def test_a_knob_that_is_none_is_left_to_the_engine() -> None:
    rendered = render_deployment(service(), EngineKnobs(max_num_seqs=64), 2)
    assert engine_of(rendered)["args"][-1] == "--max-num-seqs=64"
    assert not any("len" in word or "tensor" in word for word in engine_of(rendered)["args"])


def test_the_values_come_from_the_configuration_not_from_the_spec() -> None:
    tuned = render_deployment(service(), EngineKnobs(max_num_seqs=64, tensor_parallel_size=4), 2)
    assert "--max-num-seqs=64" in engine_of(tuned)["args"]
    assert engine_of(tuned)["resources"]["limits"] == {"nvidia.com/gpu": "4"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"engine.tensorParallelSize": 4}, {"nvidia.com/gpu": "4"}, id="one device a rank"),
        pytest.param({"engine.tensorParallelSize": ...}, {"nvidia.com/gpu": "1"}, id="one rank when nobody says"),
        pytest.param({"accelerator.resourceName": "amd.com/gpu"}, {"amd.com/gpu": "2"}, id="another vendor"),
        pytest.param({"accelerator": ...}, None, id="no accelerator, no devices"),
    ],
)
def test_devices(changes: dict[str, Any], expected: dict[str, str] | None) -> None:
    resources = engine_of(deployment(service(changes))).get("resources", {})
    assert resources.get("limits") == expected
    assert resources.get("requests") == expected


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"engine.maxNumSeqs": 64}, id="max-num-seqs"),
        pytest.param({"engine.maxModelLen": 8192}, id="max-model-len"),
        pytest.param({"engine.kvCacheDtype": "fp8"}, id="kv-cache-dtype"),
        pytest.param({"engine.tensorParallelSize": 4}, id="tensor-parallel-size"),
        pytest.param({"engine.maxNumSeqs": ...}, id="max-num-seqs removed"),
        pytest.param({"engine.maxModelLen": ...}, id="max-model-len removed"),
        pytest.param({"engine.kvCacheDtype": ...}, id="kv-cache-dtype removed"),
        pytest.param({"engine.tensorParallelSize": ...}, id="tensor-parallel-size removed"),
        pytest.param({"engine.image": "vllm/vllm-openai:v0.32.1"}, id="image"),
        pytest.param({"engine.args": ["--no-enable-prefix-caching"]}, id="arguments"),
        pytest.param({"engine.command": ["vllm", "serve"]}, id="command"),
        pytest.param({"engine.port": 8080}, id="port"),
        pytest.param({"model.name": "Qwen/Qwen3-8B"}, id="model"),
        pytest.param({"model.servedName": "chat"}, id="served name"),
        pytest.param({"model.revision": "v2"}, id="revision"),
        pytest.param({"accelerator.resourceName": "amd.com/gpu"}, id="accelerator"),
        pytest.param({"podTemplate": {"spec": {"nodeSelector": {"pool": "a"}}}}, id="pod template"),
    ],
)
def test_editing_any_engine_knob_in_spec_rolls_the_deployment(changes: dict[str, Any]) -> None:
    before, after = deployment(service()), deployment(service(changes))
    assert before["spec"]["template"] != after["spec"]["template"]
    assert config_hash(before) != config_hash(after)
    for rendered in (before, after):
        template = rendered["spec"]["template"]["metadata"]["annotations"]
        assert recorded_hash(rendered) == (config_hash(rendered), RENDERING_VERSION)
        assert template[CONFIG_HASH] == rendered["metadata"]["annotations"][CONFIG_HASH]
        assert template[HASH_VERSION] == str(RENDERING_VERSION)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(service({"replicas": 5}), id="replicas"),
        pytest.param(service({"replicas": ..., "scaling": {"maxReplicas": 4}}), id="scaling"),
        pytest.param(service({"tuning.mode": "Automatic"}), id="tuning mode"),
        pytest.param(service({"tuning.strategy": {"provisioningDeadline": "1m"}}), id="deadlines"),
        pytest.param(service({"objectives.ttft": {"target": "1s"}}), id="objectives"),
        pytest.param(service({"paused": True}), id="pause"),
        pytest.param(service({"deletionPolicy": "Delete"}), id="deletion policy"),
        pytest.param(service({"accelerator.product": "NVIDIA-L4"}), id="product name"),
        pytest.param(service(metadata={"labels": {"team": "a"}, "annotations": {"b": "c"}}), id="labels"),
        pytest.param(service(metadata={"generation": 9, "resourceVersion": "77"}), id="generation"),
        pytest.param(service(status={"effective": {"maxNumSeqs": 1}, "replicas": 3}), id="status"),
    ],
)
def test_what_does_not_concern_the_pods_does_not_roll_the_deployment(other: VLLMService) -> None:
    assert deployment(other)["spec"]["template"] == deployment(service())["spec"]["template"]


def test_the_hash_ignores_order_and_its_own_annotations() -> None:
    rendered = deployment(service())
    before = config_hash(rendered)
    metadata = rendered["spec"]["template"]["metadata"]
    metadata["annotations"] = dict(reversed(metadata["annotations"].items())) | {CONFIG_HASH: "other"}
    assert config_hash(rendered) == before


@pytest.mark.fault("T41")
def test_the_rendering_of_version_1_does_not_change_unnoticed() -> None:
    # A new value here rolls every fleet at the next upgrade: raise RENDERING_VERSION and read `workload.hashing` first.
    assert (RENDERING_VERSION, config_hash(deployment(service()))) == (1, "9d4dd2543d82d24f")


def test_replicas_are_left_out_for_another_writer() -> None:
    assert "replicas" not in render_deployment(service(), EngineKnobs(), None)["spec"]
    assert render_deployment(service(), EngineKnobs(), 0)["spec"]["replicas"] == 0


def test_a_retained_workload_has_no_owner_but_names_its_service() -> None:
    for rendered in (deployment(service()), render_service(service())):
        assert "ownerReferences" not in rendered["metadata"]
        assert rendered["metadata"]["labels"][SERVICE] == "chat"
        assert rendered["metadata"]["annotations"][SERVICE_UID] == "u-1"


def test_a_workload_to_be_deleted_has_its_service_as_controller() -> None:
    for rendered in (
        deployment(service({"deletionPolicy": "Delete"})),
        render_service(service({"deletionPolicy": "Delete"})),
    ):
        assert rendered["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "vllm-autotuner.dev/v1alpha1",
                "kind": "VLLMService",
                "name": "chat",
                "uid": "u-1",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


def test_the_deployment_selects_its_own_pods_and_the_service_all_of_them() -> None:
    rendered, front = deployment(service()), render_service(service())
    pods = rendered["spec"]["template"]["metadata"]["labels"]
    for selector in (rendered["spec"]["selector"]["matchLabels"], front["spec"]["selector"]):
        assert selector.items() <= pods.items()
    assert pod_selector("chat") == "vllm-autotuner.dev/service=chat,vllm-autotuner.dev/track=stable"
    assert front["spec"]["selector"] == {"vllm-autotuner.dev/service": "chat"}


def test_a_rollout_never_takes_capacity_away() -> None:
    assert deployment(service())["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    rendered = deployment(service({"tuning.strategy": {"provisioningDeadline": "90s"}}))
    assert rendered["spec"]["progressDeadlineSeconds"] == 90


def test_the_ranks_of_one_replica_share_memory() -> None:
    assert deployment(service())["spec"]["template"]["spec"]["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory"}}
    ]
    assert "volumes" not in deployment(service({"engine.tensorParallelSize": 1}))["spec"]["template"]["spec"]


def test_the_pod_template_is_merged_and_cannot_take_over_the_engine() -> None:
    rendered = deployment(
        service(
            {
                "podTemplate": {
                    "metadata": {
                        "labels": {"team": "chat", SERVICE: "stolen", "app.kubernetes.io/managed-by": "me"},
                        "annotations": {"prometheus.io/scrape": "false", CONFIG_HASH: "forged", "a": "b"},
                    },
                    "spec": {
                        "nodeSelector": {"pool": "gpu"},
                        "volumes": [{"name": "models", "emptyDir": {}}],
                        "containers": [
                            {
                                "name": "vllm",
                                "env": [{"name": "HF_HOME", "value": "/models"}],
                                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                                "resources": {"limits": {"cpu": "8", "nvidia.com/gpu": "7"}},
                                "livenessProbe": None,
                            },
                            {"name": "proxy", "image": "envoy"},
                        ],
                    },
                }
            }
        )
    )
    template, engine = rendered["spec"]["template"], engine_of(rendered)
    assert template["metadata"]["labels"]["team"] == "chat"
    assert template["metadata"]["labels"][SERVICE] == "chat"
    assert template["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "vllm-autotuner"
    assert template["metadata"]["annotations"]["prometheus.io/scrape"] == "false"
    assert template["metadata"]["annotations"][CONFIG_HASH] == config_hash(rendered)
    assert template["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert [volume["name"] for volume in template["spec"]["volumes"]] == ["shm", "models"]
    assert [container["name"] for container in template["spec"]["containers"]] == ["vllm", "proxy"]
    assert engine["env"] == [{"name": "HF_HOME", "value": "/models"}]
    assert [mount["mountPath"] for mount in engine["volumeMounts"]] == ["/dev/shm", "/models"]
    assert engine["resources"]["limits"] == {"cpu": "8", "nvidia.com/gpu": "2"}
    assert "livenessProbe" not in engine
    assert engine["startupProbe"]["httpGet"]["path"] == "/health"


def test_a_command_and_a_port_of_the_users() -> None:
    changes = {"engine.command": ["vllm", "serve"], "engine.port": 8080}
    of = service(changes | {"podTemplate": {"spec": {"containers": [{"name": "vllm", "command": None}]}}})
    rendered = deployment(of)
    engine, template = engine_of(rendered), rendered["spec"]["template"]
    assert engine["command"] == ["vllm", "serve"]
    assert engine["args"][0] == "Qwen/Qwen3-32B"
    assert engine["args"][engine["args"].index("--port") + 1] == "8080"
    assert [port["containerPort"] for port in engine["ports"]] == [8080]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "8080"
    assert [(port["port"], port["targetPort"]) for port in render_service(of)["spec"]["ports"]] == [(8080, "http")]
    assert command_line(engine).words == tuple(engine["args"])


def test_an_empty_pod_template_changes_nothing() -> None:
    for empty in ({}, {"spec": None, "metadata": {"labels": None}}, {"spec": {"containers": None}}):
        assert deployment(service({"podTemplate": empty})) == deployment(service())


def test_an_adopted_deployment_is_not_rendered() -> None:
    adopted = service(
        {"model": ..., "engine": ..., "accelerator": ..., "replicas": ..., "targetRef": {"name": "theirs"}}
    )
    with pytest.raises(NothingToRender, match="prod/chat"):
        render_deployment(adopted, EngineKnobs(), None)
    with pytest.raises(NothingToRender, match="prod/chat"):
        render_service(adopted)


def test_rendering_twice_gives_the_same_and_changes_no_input() -> None:
    one = service({"podTemplate": {"spec": {"containers": [{"name": "vllm", "env": []}]}}})
    before = one.spec.model_copy(deep=True)
    assert deployment(one) == deployment(one)
    assert one.spec == before


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({CONFIG_HASH: "ab", HASH_VERSION: "1"}, ("ab", 1), id="ours"),
        pytest.param({CONFIG_HASH: "ab"}, None, id="a hash without its version"),
        pytest.param({CONFIG_HASH: "ab", HASH_VERSION: "new"}, None, id="a version edited by hand"),
        pytest.param({}, None, id="not ours"),
    ],
)
def test_the_recorded_hash_of_a_live_object(annotations: dict[str, str], expected: tuple[str, int] | None) -> None:
    assert recorded_hash({"metadata": {"annotations": annotations}}) == expected


def trial(track: Track = Track.CANARY, *, seats: int = 192) -> Trial:
    engine = service().spec.engine
    assert engine is not None
    knobs = engine.knobs.updated(max_num_seqs=seats)
    return Trial(name=f"chat-{track.value[0]}-c1", track=track, change_id="c1", knobs=knobs)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
@pytest.mark.parametrize("track", list(Track))
def test_a_trial_is_one_pod_that_the_services_own_deployment_would_start(track: Track, policy: str) -> None:
    given = service({"deletionPolicy": policy, "replicas": 4})
    found = render_trial(given, trial(track))
    own = render_deployment(given, trial(track).knobs, 4)
    template, expected = found["spec"]["template"], own["spec"]["template"]
    assert template["spec"] == expected["spec"]
    assert template["metadata"]["annotations"] == expected["metadata"]["annotations"]
    assert recorded_hash(found) == recorded_hash(own)
    labels = {TRACK: track.value, CHANGE: "c1"}
    assert template["metadata"]["labels"] == expected["metadata"]["labels"] | labels
    assert found["spec"]["selector"] == {"matchLabels": {SERVICE: given.metadata.name, **labels}}
    assert (found["metadata"]["name"], found["spec"]["replicas"]) == (trial(track).name, 1)
    assert found["metadata"]["labels"] == own["metadata"]["labels"] | labels
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [given.metadata.uid]


def test_the_service_sends_requests_to_every_track_and_the_scale_counts_one() -> None:
    selector = render_service(service())["spec"]["selector"]
    for track in Track:
        assert (
            selector.items() <= render_trial(service(), trial(track))["spec"]["template"]["metadata"]["labels"].items()
        )
    assert dict(part.split("=") for part in pod_selector("chat").split(",")) == {SERVICE: "chat", TRACK: STABLE}


def test_labels_and_annotations_of_the_workload_restart_no_pod_and_give_way_to_the_operators_own() -> None:
    given = {
        "labels": {"team": "chat", "app.kubernetes.io/name": "mine", "app.kubernetes.io/managed-by": "mine"},
        "annotations": {"example.com/cost": "a"},
    }
    plain, labelled = service(), service({"workloadMetadata": given})
    before, after = deployment(plain), deployment(labelled)
    assert after["spec"] == before["spec"]
    for one, other in ((before, after), (render_service(plain), render_service(labelled))):
        assert other["metadata"]["labels"] == one["metadata"]["labels"] | {"team": "chat"}
        added = other["metadata"]["annotations"].items() - one["metadata"]["annotations"].items()
        assert dict(added).keys() == {"example.com/cost", METADATA_HASH}
    assert METADATA_HASH not in before["metadata"]["annotations"]
    assert render_trial(labelled, trial(Track.CANARY))["metadata"]["labels"]["team"] == "chat"


def test_an_empty_metadata_of_the_workload_is_none() -> None:
    empty = service({"workloadMetadata": {}})
    assert render_service(empty) == render_service(service())
