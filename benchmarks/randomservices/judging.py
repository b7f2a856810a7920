"""Diagnoses a played service as `vllm-autotuner diagnose` does, plays what it recommends, and compares the two.

Must not: draw, or hold a threshold of the product.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Final

import numpy as np

from benchmarks.randomservices.drawing import Odd, Service, draw_service, engine_args
from benchmarks.randomservices.playing import EPOCH, Played, play
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.cli.diagnosis.as_json import as_json
from vllm_autotuner.cli.diagnosis.request import typed_subject
from vllm_autotuner.cli.evaluate.evaluation import ServiceReport, evaluate
from vllm_autotuner.cli.evaluate.moments import REMOTE_TICK, WARM_UP, Schedule
from vllm_autotuner.cli.evaluate.service_groups import one_service
from vllm_autotuner.cli.options.platform_options import PlatformOptions
from vllm_autotuner.cli.simulate.run_figures import latencies
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.simulation.configuration import StartupRefused
from vllm_autotuner.simulation.ledger import FloatArray, Period

__all__ = ["ONE_FEWER", "Came", "Change", "Outcome", "change_of", "diagnosed", "outcome_of", "row_of"]

ONE_FEWER: Final = "replicas, one fewer"
"""No knob of `diagnose`: what the class Underutilized says, and the operator's scaling does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What the simulation gave in a time. Latencies in seconds at the objectives' quantiles; None without any."""

    requests: int
    """Answered."""
    goodput: float
    """Requests per second within both objectives."""
    attained: float | None
    """Share of the requests that ended."""
    ttft: float | None
    tpot: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that was recommended, or that the class implies."""

    knob: str
    current: int | str | None
    value: int | str
    flags: EngineFlags
    replicas: int
    ttft: float | None = None
    """Foretold, seconds."""
    tpot: float | None = None
    gpus: int | None = None
    """With it; None where the engine does not start."""
    came: Came | None = None
    """With it; None where it was not simulated."""
    why_not: str = ""
    """Why it was not simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One service, its diagnosis, and what came of each change."""

    service: Service
    targets: Targets
    report: ServiceReport
    gpus: int
    seen: Came
    """Unchanged, before the diagnosis: what the diagnosis is about."""
    stayed: Came
    """Unchanged, after it: what changes are compared with."""
    changes: Sequence[Change]
    levels: Mapping[str, Any]
    """Gauges of the replicas before the diagnosis."""


def outcome_of(seed: int) -> Outcome:
    """Draw, play, diagnose and change the service of a seed."""
    service = draw_service(seed)
    now = play(service, flags=service.flags, replicas=service.replicas)
    report = diagnosed(service, now)
    targets = report.targets
    steady, stayed = service, now
    if service.odd is Odd.COLD:
        # Compared are steady states: what has queued before the last replica came is in neither of them.
        steady = replace(service, odd=Odd.NONE)
        stayed = play(steady, flags=service.flags, replicas=service.replicas, scraped_too=False)
    changes = [_simulated(steady, each, targets=targets) for each in _changes(service, report)]
    return Outcome(
        service=service,
        targets=targets,
        report=report,
        gpus=now.gpus,
        seen=_came(now.seen, targets),
        stayed=_came(stayed.judged, targets),
        changes=changes,
        levels=_levels(now),
    )


def diagnosed(service: Service, played: Played) -> ServiceReport:
    """Evaluate what was scraped, at the operator's pace, and report the moment at which it ends."""
    platform = PlatformOptions(
        engine_args=engine_args(service.flags) if service.flags_known else None,
        model=service.model if service.platform_known else None,
        gpu=service.gpu if service.platform_known else None,
    )
    end = EPOCH + service.seen
    # Before the second scrape nothing can be seen to grow.
    looks = int(min(WARM_UP, service.seen - 2 * service.interval) / REMOTE_TICK)
    ticks = tuple(end - REMOTE_TICK * index for index in range(looks - 1, -1, -1))
    (report,) = asyncio.run(
        evaluate(
            played.recording,
            schedule=Schedule(ticks=ticks),
            grouping=one_service,
            subject=typed_subject(service.objectives, platform),
            settings=WindowSettings(),
        )
    )
    return report


def change_of(service: Service, proposal: Proposal) -> Change:
    """Carry out what is proposed."""
    flags, replicas = service.flags, service.replicas
    if proposal.max_model_len is not None:
        flags = replace(flags, max_model_len=proposal.max_model_len)
    if proposal.max_num_seqs is not None:
        flags = replace(flags, max_num_seqs=proposal.max_num_seqs)
    match proposal.knob:
        case Knob.MAX_NUM_SEQS:
            flags = replace(flags, max_num_seqs=proposal.count)
        case Knob.MAX_MODEL_LEN:
            flags = replace(flags, max_model_len=proposal.count)
        case Knob.KV_CACHE_DTYPE:
            flags = replace(flags, kv_cache_dtype=str(proposal.value))
        case Knob.TENSOR_PARALLEL_SIZE:
            flags = replace(flags, tensor_parallel_size=proposal.count)
        case Knob.REPLICAS:
            replicas = proposal.count
    foretold = {each.name: each.predicted for each in proposal.predicted}
    return Change(
        knob=proposal.knob.value,
        current=proposal.current,
        value=proposal.value,
        flags=flags,
        replicas=replicas,
        ttft=foretold.get("TTFT"),
        tpot=foretold.get("TPOT"),
    )


def row_of(outcome: Outcome) -> dict[str, Any]:
    """Return the service and all that came of it as plain values, to be looked at again."""
    service, report = outcome.service, outcome.report
    (told,) = as_json([report], at=EPOCH + service.seen, span=None, notes=())["services"]
    about = ("name", "rate", "load", "burstiness", "replicas", "interval", "lost", "seen", "flags_known")
    return {
        "seed": service.seed,
        "service": {
            **{name: getattr(service, name) for name in (*about, "platform_known")},
            "odd": service.odd.value,
            "routing": service.routing.value,
            "engine_args": engine_args(service.flags),
            "prompt": repr(service.mix.prompt),
            "output": repr(service.mix.output),
            "shared_tokens": service.mix.shared_tokens,
            "max_tokens": service.mix.max_tokens,
            "prefix_hit_ratio": service.profile.prefix_hit_ratio,
            "gpus": outcome.gpus,
        },
        "objectives": {"ttft": outcome.targets.ttft.seconds, "tpot": outcome.targets.tpot.seconds},
        "diagnosis": told["diagnosis"],
        "passed_over": told["passedOver"],
        "recommendation": told["recommendation"],
        "seen": {**asdict(outcome.seen), **outcome.levels},
        "stayed": asdict(outcome.stayed),
        "changes": [_row(each) for each in outcome.changes],
    }


def _row(change: Change) -> dict[str, Any]:
    return {
        "knob": change.knob,
        "current": change.current,
        "value": change.value,
        "foretold": {"ttft": change.ttft, "tpot": change.tpot},
        "gpus": change.gpus,
        "came": None if change.came is None else asdict(change.came),
        "why_not": change.why_not,
    }


def _changes(service: Service, report: ServiceReport) -> Sequence[Change]:
    proposal = report.plan.proposal
    found = [] if proposal is None else [change_of(service, proposal)]
    fewer = service.replicas - 1
    if report.diagnosis.primary is DiagnosisClass.UNDERUTILIZED and fewer:
        found.append(Change(knob=ONE_FEWER, current=service.replicas, value=fewer, flags=service.flags, replicas=fewer))
    return found


def _simulated(service: Service, change: Change, *, targets: Targets) -> Change:
    if service.odd is Odd.HANGS:
        return replace(change, why_not="a replica hangs: any change would restart it")
    try:
        played = play(service, flags=change.flags, replicas=change.replicas, scraped_too=False)
    except StartupRefused as refused:
        return replace(change, why_not=f"the engine does not start: {refused}")
    return replace(change, gpus=played.gpus, came=_came(played.judged, targets))


def _came(period: Period, targets: Targets) -> Came:
    within = {"ttft": targets.ttft.seconds, "tpot": targets.tpot.seconds}
    ttft, tpot = latencies(period)
    return Came(
        requests=len(ttft),
        goodput=period.goodput(**within),
        attained=period.attainment(**within),
        ttft=_at_quantile(ttft, targets.ttft),
        tpot=_at_quantile(tpot, targets.tpot),
    )


def _at_quantile(values: FloatArray, target: Target) -> float | None:
    return float(np.quantile(values, target.quantile)) if len(values) else None


def _levels(played: Played) -> dict[str, Any]:
    """Means of each replica, the fullest pool, and what was preempted in all."""
    pods = [[each for each in played.gauges if each.pod == pod] for pod in sorted({g.pod for g in played.gauges})]
    return {
        "slots": played.config.max_num_seqs,
        "running": [fmean(each.running for each in pod) for pod in pods],
        "waiting": [fmean(each.waiting for each in pod) for pod in pods],
        "kv_most": max((each.kv for each in played.gauges), default=None),
        "preemptions": sum(pod[-1].preemptions - pod[0].preemptions for pod in pods),
    }
