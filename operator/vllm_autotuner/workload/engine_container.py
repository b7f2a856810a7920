"""The engine's container: command line, probes and devices for one setting of the knobs.

Must not: choose a value. A knob that is None is left to the engine.
"""

from collections.abc import Sequence
from typing import Any, Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.pod_template import ENGINE_CONTAINER
from vllm_autotuner.api.spec import Accelerator, Engine, Model

HTTP_PORT: Final = 8000
"""vLLM's own default, where the spec names no other; requests, health and metrics."""

STARTUP_PERIOD_SECONDS: Final = 2
"""Short, because a change is measured from the first ready answer on; /health costs the engine nothing."""

STARTUP_LIMIT_SECONDS: Final = 3600
"""Loading and compiling the largest models from a cold disk takes tens of minutes: longer delays a restart, shorter
never lets such a model start. The deadline of a change is another: spec.tuning.strategy.provisioningDeadline."""

DRAIN_SECONDS: Final = 5
"""Between the decision to stop and the signal, so that no endpoint still points here. Our choice."""

SHARED_MEMORY: Final = "shm"
"""Name of the volume at /dev/shm: the ranks of one replica exchange tensors there, and 64 MiB do not do."""


SHARED_MEMORY_MOUNT: Final = {"name": SHARED_MEMORY, "mountPath": "/dev/shm"}  # noqa: S108 (inside the pod)
SHARED_MEMORY_VOLUME: Final = {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}


def engine_container(
    *, model: Model, engine: Engine, knobs: EngineKnobs, accelerator: Accelerator | None
) -> dict[str, Any]:
    """Render the container that runs the engine with these knobs."""
    container: dict[str, Any] = {
        "name": ENGINE_CONTAINER,
        "image": engine.image,
        "args": engine_args(model=model, engine=engine, knobs=knobs),
        "ports": [{"name": "http", "containerPort": engine.port or HTTP_PORT, "protocol": "TCP"}],
        "startupProbe": _probe(period=STARTUP_PERIOD_SECONDS, failures=STARTUP_LIMIT_SECONDS // STARTUP_PERIOD_SECONDS),
        "readinessProbe": _probe(period=5, failures=3),
        # A loaded engine answers late; only one that is silent for two minutes is restarted.
        "livenessProbe": _probe(period=10, failures=12),
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
        # Failed starts are told apart by the last lines of the log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if engine.command is not None:
        container["command"] = list(engine.command)
    if devices := device_resources(knobs=knobs, accelerator=accelerator):
        container["resources"] = devices
    if ranks(knobs) > 1:
        container["volumeMounts"] = [SHARED_MEMORY_MOUNT]
    return container


def engine_args(*, model: Model, engine: Engine, knobs: EngineKnobs) -> list[str]:
    """Render the command line; tuned flags come last, where the last value of a flag wins."""
    args = [model.name, "--served-model-name", model.served_name or model.name]
    if model.revision is not None:
        args += ["--revision", model.revision]
    if engine.port is not None:
        args += ["--port", str(engine.port)]
    return retuned([*args, *engine.args], knobs)


def retuned(args: Sequence[str], knobs: EngineKnobs) -> list[str]:
    """Return a command line with these values of the tuned flags and none of those that it had."""
    tuned = {
        "--max-num-seqs": knobs.max_num_seqs,
        "--max-model-len": knobs.max_model_len,
        "--kv-cache-dtype": knobs.kv_cache_dtype,
        "--tensor-parallel-size": knobs.tensor_parallel_size,
    }
    others = [word for word in args if word.partition("=")[0] not in tuned]
    return others + [f"{flag}={value}" for flag, value in tuned.items() if value is not None]


def device_resources(*, knobs: EngineKnobs, accelerator: Accelerator | None) -> dict[str, Any]:
    """Render the devices of one replica: one a rank. Empty without an accelerator."""
    if accelerator is None:
        return {}
    devices = {accelerator.resource_name: str(ranks(knobs))}
    return {"requests": devices, "limits": devices}


def ranks(knobs: EngineKnobs) -> int:
    """Return how many devices share one replica."""
    return knobs.tensor_parallel_size or 1


def _probe(*, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
