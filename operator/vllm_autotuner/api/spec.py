"""The model of `VLLMService.spec`. Users write it; the operator never does, as that would conflict with GitOps tools.

Errors that are visible in the object alone are rejected here and, by the same rules as CEL, by the API server. Checks
that need the cluster (GPUs, model geometry, a Deployment to adopt) run later and set a condition.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StrictBool

from vllm_autotuner.api.annotations import PREFIX
from vllm_autotuner.api.engine_args import ARGS_MAX_ITEMS, MORE_DEVICES, CommandWord, EngineArg
from vllm_autotuner.api.fields import DnsLabel, Duration, Quantile, cel_string, matching
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import PUBLISHED_DEFAULT, ApiModel, Rule
from vllm_autotuner.api.pod_template import PodTemplate
from vllm_autotuner.api.tuning import (
    AllowedInts,
    AllowedStrings,
    Budget,
    IntBounds,
    Mode,
    Strategy,
    StrategyType,
    Tuning,
    Window,
)

__all__ = [
    "MOST_REPLICAS",
    "Accelerator",
    "AllowedInts",
    "AllowedStrings",
    "Budget",
    "DeletionPolicy",
    "Engine",
    "IntBounds",
    "Mode",
    "Model",
    "Objective",
    "Objectives",
    "Profile",
    "PrometheusRef",
    "ScaleIn",
    "ScaleOut",
    "Scaling",
    "Strategy",
    "StrategyType",
    "TargetRef",
    "Tuning",
    "VLLMServiceSpec",
    "Window",
]

MOST_REPLICAS: Final = 10_000
"""Of one service."""
_Replicas = Annotated[int, Field(strict=True, ge=0, le=MOST_REPLICAS)]
_MinReplicas = Annotated[int, Field(strict=True, ge=1, le=MOST_REPLICAS)]


class Profile(StrEnum):
    """The kind of traffic; decides what to optimize within the objectives."""

    LATENCY = "Latency"
    """Interactive: meet every objective with a reserve."""

    THROUGHPUT = "Throughput"
    """Batch: as many tokens as the objectives allow."""

    BURSTY = "Bursty"
    """Idle periods and peaks: sized for the peaks."""


class DeletionPolicy(StrEnum):
    """What happens to the Deployment and Service when the VLLMService is deleted."""

    RETAIN = "Retain"
    """They keep serving, without an owner."""

    DELETE = "Delete"
    """They are garbage-collected."""


class Model(ApiModel):
    """The model to serve."""

    name: Annotated[str, Field(min_length=1, max_length=512)]
    """The model that vLLM loads: a Hugging Face id or a path inside the container."""

    served_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The model name in requests (--served-model-name). Default: spec.model.name."""

    revision: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Branch, tag or commit (--revision). Default: the repository's default branch."""


class Engine(EngineKnobs):
    """The engine and the starting values of its knobs."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    """Container image of vLLM."""

    command: Annotated[tuple[CommandWord, ...], Field(min_length=1, max_length=ARGS_MAX_ITEMS)] | None = None
    """What the container runs before its arguments, such as [vllm, serve]. Default: the entrypoint of its image."""

    port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = None
    """Port of requests, health and metrics in the pods (--port), and of the Service. Default: 8000."""

    args: Annotated[tuple[EngineArg, ...], Field(max_length=ARGS_MAX_ITEMS)] = ()
    """Additional flags, not tuned; flags with a field of their own in the spec are rejected. Default: none."""


class Accelerator(ApiModel):
    """The device of a replica; the number of devices is the tensor-parallel size."""

    resource_name: Annotated[
        str,
        *matching(
            r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            max_length=253,
            message="write an extended resource such as nvidia.com/gpu or amd.com/gpu",
        ),
    ] = "nvidia.com/gpu"
    """The extended resource to request. Default: nvidia.com/gpu."""

    product: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The device as in its node label, such as NVIDIA-H100-80GB-HBM3. It chooses no node. Default: unknown."""


class WorkloadMetadata(ApiModel):
    """Labels and annotations of the Deployment and the Service; those of pods are in spec.podTemplate.metadata."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)] | None = None
    """Additional labels; the operator's own take precedence. Default: none."""

    annotations: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] | None = None
    """Additional annotations; the operator's own take precedence. Default: none."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=" && ".join(
                f"(!has(self.{part}) || self.{part}.all(key, !key.startsWith('{PREFIX}')))"
                for part in ("labels", "annotations")
            ),
            message=f"remove the keys that begin with {PREFIX}: they are the operator's own",
            holds=lambda given: (
                not any(key.startswith(PREFIX) for key in (*(given.labels or ()), *(given.annotations or ())))
            ),
        ),
    )


class ScaleOut(ApiModel):
    """When to add replicas."""

    waiting_for: Duration = timedelta(seconds=30)
    """How long requests must have been waiting. Default: 30s."""


class ScaleIn(ApiModel):
    """When to remove replicas."""

    stabilization: Duration = timedelta(minutes=10)
    """How long fewer replicas must have been enough. Default: 10m."""


class Scaling(ApiModel):
    """Bounds of the replicas that the operator sets in mode Automatic. Leave it out if an HPA or KEDA targets the
    VLLMService."""

    min_replicas: _MinReplicas = 1
    """Minimum number of replicas. Default: 1."""

    max_replicas: _MinReplicas
    """Maximum number of replicas."""

    scale_out: ScaleOut = ScaleOut()
    """When to add replicas."""

    scale_in: ScaleIn = ScaleIn()
    """When to remove replicas."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(has(self.minReplicas) ? self.minReplicas : 1) <= self.maxReplicas",
            message="scaling.minReplicas must not exceed scaling.maxReplicas",
            holds=lambda scaling: scaling.min_replicas <= scaling.max_replicas,
        ),
    )


class Objective(ApiModel):
    """A service-level objective: this quantile of the latency stays below the target."""

    quantile: Quantile = "0.95"
    """The quantile, as a string. Default: "0.95"."""

    target: Duration
    """The upper limit of the latency."""


class Objectives(ApiModel):
    """Service-level objectives. Those that are left out are those of the profile, at p95."""

    profile: Profile = Profile.LATENCY
    """What the service is for: Latency (TTFT 2s, TPOT 50ms), Throughput (60s, 200ms) or Bursty (5s, 50ms). Default:
    Latency."""

    ttft: Objective | None = None
    """Time to first token. Default: that of the profile."""

    tpot: Objective | None = None
    """Time per output token. Default: that of the profile."""


class PrometheusRef(ApiModel):
    """The source of this service's metrics."""

    source: DnsLabel
    """The name of a source in the operator's configuration; never an address, which could leak credentials."""


class TargetRef(ApiModel):
    """An existing Deployment: always diagnosed, tuned unless another field manager owns the flags, never deleted."""

    api_version: Literal["apps/v1"] = "apps/v1"
    """Only apps/v1. Default: apps/v1."""

    kind: Literal["Deployment"] = "Deployment"
    """Only Deployment. Default: Deployment."""

    name: Annotated[
        str,
        *matching(
            r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            max_length=253,
            message="write the name of a Deployment: lower-case letters, digits, '-' and '.'",
        ),
    ]
    """Its name, in the same namespace."""


def _inside(value: int | None, bounds: IntBounds | None) -> bool:
    return value is None or bounds is None or bounds.min <= value <= bounds.max


def _listed(value: object, choice: AllowedStrings | AllowedInts | None) -> bool:
    return value is None or choice is None or value in choice.allowed


def _starting_value(knob: str, *, cel: str, message: str, holds: Any) -> Rule:
    """A rule over a knob's starting value and its bounds, if both are set."""
    both = f"!has(self.engine) || !has(self.engine.{knob}) || !has(self.tuning) || !has(self.tuning.{knob})"
    value, bounds = f"self.engine.{knob}", f"self.tuning.{knob}"
    return Rule(
        cel=f"{both} || {cel.format(value=value, bounds=bounds)}",
        message=message,
        holds=lambda spec: spec.engine is None or holds(spec.engine, spec.tuning),
    )


class VLLMServiceSpec(ApiModel):
    """The desired service of a model: workload, objectives, and the limits of its tuning."""

    model: Model | None = None
    """The model to serve; required with engine."""

    engine: Engine | None = None
    """The engine that serves it. Exactly one of engine and targetRef."""

    target_ref: TargetRef | None = None
    """An existing Deployment to adopt, instead of one that the operator renders."""

    accelerator: Accelerator | None = None
    """The device of a replica. Default: none is requested (CPU, or the pod template requests it)."""

    pod_template: PodTemplate | None = None
    """Metadata and spec to merge into the pods: volumes, env, tolerations. At most 64 KiB of JSON and 32 levels."""

    workload_metadata: WorkloadMetadata | None = None
    """Labels and annotations of the Deployment and the Service, which policies may ask for. They restart no pod."""

    replicas: _Replicas | None = None
    """A fixed number of replicas; also the target of the scale subresource. Exactly one of replicas and scaling."""

    scaling: Scaling | None = None
    """Bounds between which the operator sets the replicas."""

    objectives: Objectives = Objectives()
    """Service-level objectives."""

    tuning: Annotated[Tuning, Field(json_schema_extra={PUBLISHED_DEFAULT: {}})] = Tuning()
    """Mode, bounds and limits of tuning."""

    prometheus: PrometheusRef | None = None
    """Another source of metrics. Default: the operator's own."""

    paused: StrictBool = False
    """Pause tuning and scaling; serving and health checks continue. Default: false."""

    deletion_policy: Annotated[DeletionPolicy, Field(json_schema_extra={PUBLISHED_DEFAULT: "Retain"})] = (
        DeletionPolicy.RETAIN
    )
    """What happens to the workload when this object is deleted: Retain or Delete. Default: Retain."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.engine) != has(self.targetRef)",
            message="set exactly one of engine (the operator runs the workload) and targetRef (an existing Deployment)",
            holds=lambda spec: (spec.engine is None) != (spec.target_ref is None),
        ),
        Rule(
            cel="has(self.model) || !has(self.engine)",
            message="set model.name: engine needs a model to serve",
            holds=lambda spec: spec.model is not None or spec.engine is None,
        ),
        Rule(
            cel="!has(self.model) || !has(self.targetRef)",
            message="remove model: the Deployment that targetRef names decides which model it serves",
            holds=lambda spec: spec.model is None or spec.target_ref is None,
        ),
        Rule(
            cel="!has(self.accelerator) || !has(self.engine) || !has(self.engine.args)"
            f" || !self.engine.args.exists(word, word.matches({cel_string(MORE_DEVICES)}))",
            message="remove accelerator and set the devices of a pod in podTemplate, as --pipeline-parallel-size and "
            "--data-parallel-size need more: accelerator asks for one for each rank of tensorParallelSize",
            holds=lambda spec: (
                spec.accelerator is None
                or spec.engine is None
                or not any(re.search(MORE_DEVICES, word) for word in spec.engine.args)
            ),
        ),
        Rule(
            cel="has(self.targetRef) || has(self.replicas) != has(self.scaling)",
            message="set exactly one of replicas (a fixed number, or set by an autoscaler) "
            "and scaling (minReplicas, maxReplicas)",
            holds=lambda spec: spec.target_ref is not None or (spec.replicas is None) != (spec.scaling is None),
        ),
        Rule(
            cel="!has(self.targetRef) || !has(self.replicas)",
            message="remove replicas: the Deployment that targetRef names keeps its own; set scaling to change them",
            holds=lambda spec: spec.target_ref is None or spec.replicas is None,
        ),
        Rule(
            cel="!has(self.targetRef) || !has(self.podTemplate)",
            message="remove podTemplate: the Deployment that targetRef names keeps its own",
            holds=lambda spec: spec.target_ref is None or spec.pod_template is None,
        ),
        Rule(
            cel="!has(self.targetRef) || !has(self.workloadMetadata)",
            message="remove workloadMetadata: the Deployment that targetRef names keeps its own",
            holds=lambda spec: spec.target_ref is None or spec.workload_metadata is None,
        ),
        Rule(
            cel="!has(self.targetRef) || !has(self.tuning) || !has(self.tuning.strategy)"
            " || !has(self.tuning.strategy.type) || self.tuning.strategy.type != 'Canary'",
            message="remove tuning.strategy.type Canary: the Deployment that targetRef names is only changed in place",
            holds=lambda spec: spec.target_ref is None or spec.tuning.strategy.type is not StrategyType.CANARY,
        ),
        _starting_value(
            "maxNumSeqs",
            cel="({value} >= {bounds}.min && {value} <= {bounds}.max)",
            message="engine.maxNumSeqs must lie within tuning.maxNumSeqs.min and max",
            holds=lambda engine, tuning: _inside(engine.max_num_seqs, tuning.max_num_seqs),
        ),
        _starting_value(
            "maxModelLen",
            cel="({value} >= {bounds}.min && {value} <= {bounds}.max)",
            message="engine.maxModelLen must lie within tuning.maxModelLen.min and max",
            holds=lambda engine, tuning: _inside(engine.max_model_len, tuning.max_model_len),
        ),
        _starting_value(
            "kvCacheDtype",
            cel="{value} in {bounds}.allowed",
            message="engine.kvCacheDtype must be one of tuning.kvCacheDtype.allowed",
            holds=lambda engine, tuning: _listed(engine.kv_cache_dtype, tuning.kv_cache_dtype),
        ),
        _starting_value(
            "tensorParallelSize",
            cel="{value} in {bounds}.allowed",
            message="engine.tensorParallelSize must be one of tuning.tensorParallelSize.allowed",
            holds=lambda engine, tuning: _listed(engine.tensor_parallel_size, tuning.tensor_parallel_size),
        ),
    )
