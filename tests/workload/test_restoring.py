"""The way back without a spec: what is written over the live Deployment is what would have been rendered."""

import pytest
from tests.control.cluster_model import merged
from tests.workload.services import service

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import ConfigRef
from vllm_autotuner.workload.hashing import config_hash
from vllm_autotuner.workload.rendering import render_deployment
from vllm_autotuner.workload.restoring import restored

KNOBS = {
    "fewer seats": EngineKnobs(max_num_seqs=64, tensor_parallel_size=2),
    "more seats": EngineKnobs(max_num_seqs=128, tensor_parallel_size=2),
    "the engine's own": EngineKnobs(),
    "fp8": EngineKnobs(max_num_seqs=64, kv_cache_dtype="fp8", tensor_parallel_size=2),
    "four devices": EngineKnobs(max_num_seqs=64, tensor_parallel_size=4),
}
TEMPLATE = {
    "spec": {
        "volumes": [{"name": "cache", "emptyDir": {}}],
        "containers": [
            {
                "name": "vllm",
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                "resources": {"limits": {"cpu": "2", "memory": "8Gi"}},
            },
            {"name": "sidecar", "image": "busybox", "args": ["--max-num-seqs=1"]},
        ],
    }
}


@pytest.mark.parametrize("pod_template", [None, TEMPLATE], ids=["a plain pod", "a pod with volumes and a sidecar"])
@pytest.mark.parametrize("back", KNOBS.values(), ids=KNOBS.keys())
@pytest.mark.parametrize("to", KNOBS.values(), ids=KNOBS.keys())
def test_restored_it_is_what_would_have_been_rendered(
    to: EngineKnobs, back: EngineKnobs, pod_template: dict[str, object] | None
) -> None:
    of = service({"podTemplate": pod_template} if pod_template else {})
    live, wanted = render_deployment(of, to, 2), render_deployment(of, back, 2)
    patch = restored(
        live,
        to=ConfigRef(**to.model_dump(), config_hash=config_hash(live)),
        back=ConfigRef(**back.model_dump(), config_hash=config_hash(wanted)),
    )
    assert merged(live, patch) == wanted
