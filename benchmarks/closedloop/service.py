"""The VLLMService of a scenario, as its user writes it, and the Deployment that any policy asks for.

Must not: decide. Rivals and the product render their workload by the product's own function.
"""

from copy import deepcopy
from typing import Any

from benchmarks.closedloop.pods import EPOCH, GPUS, IMAGE, NAME, NAMESPACE
from benchmarks.closedloop.scenario import Rhythm, Scenario, Upgrade
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.service import API_VERSION, KIND, VLLMService, parse_service
from vllm_autotuner.workload.rendering import render_deployment

__all__ = ["Owner"]


class Owner:
    """The person whose object it is: writes the spec, and edits it when the scenario says so."""

    def __init__(self, scenario: Scenario) -> None:
        self.spec = _spec(scenario)
        self.generation = 1
        self._edits = sorted((one for one in scenario.disturbances if isinstance(one, Upgrade)), key=lambda one: one.at)

    def tick(self, now: float) -> None:
        """Make the edits that are due."""
        while self._edits and self._edits[0].at <= now:
            self.spec = deepcopy(self.spec)
            self.spec["engine"]["image"] = self._edits.pop(0).image
            self.generation += 1

    def body(self, status: dict[str, Any] | None = None, *, version: int = 1) -> dict[str, Any]:
        """The object as the API server would hand it out."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "uid": "service",
                "generation": self.generation,
                "resourceVersion": str(version),
                "creationTimestamp": EPOCH.isoformat(),
            },
            "spec": self.spec,
            "status": status or {},
        }

    def service(self) -> VLLMService:
        """The object as it reads."""
        service = parse_service(self.body())
        if not isinstance(service, VLLMService):
            raise AssertionError(f"the scenario writes an object that nobody can read: {service.message}")
        return service

    def rendered(
        self,
        *,
        seats: int | None,
        replicas: int,
        kv_cache_dtype: str | None = None,
        tensor_parallel_size: int | None = None,
        max_model_len: int | None = None,
    ) -> dict[str, Any]:
        """The Deployment with these values and everything else as written."""
        service = self.service()
        engine = service.spec.engine
        assert engine is not None
        knobs = engine.knobs.updated(max_num_seqs=seats, kv_cache_dtype=kv_cache_dtype)
        if tensor_parallel_size is not None:
            knobs = knobs.updated(tensor_parallel_size=tensor_parallel_size)
        if max_model_len is not None:
            knobs = knobs.updated(max_model_len=max_model_len)
        return render_deployment(service, knobs, replicas)


def _spec(scenario: Scenario) -> dict[str, Any]:
    hardware, objectives = scenario.hardware, scenario.objectives
    engine: dict[str, Any] = {
        "image": IMAGE,
        "maxModelLen": hardware.max_model_len,
        "tensorParallelSize": hardware.tensor_parallel_size,
    }
    if scenario.seats is not None:
        engine["maxNumSeqs"] = scenario.seats
    scaling = {"minReplicas": scenario.min_replicas, "maxReplicas": scenario.max_replicas}
    return {
        "model": {"name": hardware.model},
        "engine": engine,
        "accelerator": {
            "resourceName": GPUS,
            **({"product": hardware.gpu} if hardware.gpu is not None else {}),
        },
        "podTemplate": {"spec": {"terminationGracePeriodSeconds": scenario.grace}},
        **({"scaling": scaling} if scenario.scales else {"replicas": scenario.replicas}),
        "objectives": {
            "ttft": {"target": _milliseconds(objectives.ttft), "quantile": f"{objectives.quantile:g}"},
            "tpot": {"target": _milliseconds(objectives.tpot), "quantile": f"{objectives.quantile:g}"},
        },
        "tuning": {"mode": "Automatic", **_bounds(scenario), **_rhythm(scenario.rhythm)},
    }


def _bounds(scenario: Scenario) -> dict[str, Any]:
    """Of each flag that the user lets change. KV values that may only stay as they are are named as well."""
    if not scenario.tunes:
        return {}
    low, high = scenario.seat_bounds
    bounds: dict[Knob, dict[str, Any]] = {
        Knob.MAX_NUM_SEQS: {"min": low, "max": high},
        Knob.KV_CACHE_DTYPE: {"allowed": list(scenario.kv_cache_dtypes)},
        Knob.TENSOR_PARALLEL_SIZE: {"allowed": sorted(scenario.parallel_sizes)},
        Knob.MAX_MODEL_LEN: dict(zip(("min", "max"), scenario.length_bounds or (), strict=False)),
    }
    told = {*scenario.adjustable, Knob.KV_CACHE_DTYPE} - {scenario.frozen}
    return {knob.value: found for knob, found in bounds.items() if knob in told}


def _rhythm(rhythm: Rhythm) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if rhythm.changes_per_day is not None:
        told["budget"] = {"changesPerDay": rhythm.changes_per_day}
    if rhythm.cooldown is not None:
        told["cooldown"] = rhythm.cooldown
    if rhythm.bake is not None:
        told["strategy"] = {"bake": rhythm.bake}
    return told


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
