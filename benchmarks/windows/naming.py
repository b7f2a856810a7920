"""A scene played, scraped with gaps, and named window by window by the operator's own functions.

Must not: let a rule decide what is true, or clean what was scraped.
"""

import random
from collections.abc import Sequence
from typing import Final

from benchmarks.windows.draws import Scene, requests_of
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Objectives
from vllm_autotuner.cli.evaluate.evaluation import Subject, evaluate
from vllm_autotuner.cli.evaluate.moments import REMOTE_TICK, Schedule
from vllm_autotuner.cli.evaluate.service_groups import one_service
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.observation.metrics_text import Sample, read_samples
from vllm_autotuner.observation.questions import Samples
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.series import plain_increase
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.simulation.metrics_page import render
from vllm_autotuner.simulation.scheduler import SimulatedEngine

__all__ = ["named_windows", "scraped", "truth_of"]

EPOCH: Final = 1_800_000_000.0
"""Unix seconds of a scene's start; any will do."""
THRASH: Final = 0.01
"""Evictions per finished request from which a full pool is called a thrash. Source: design of the classes, F4."""
REASON: Final = "vllm:num_requests_waiting_by_reason"


def scraped(scene: Scene, *, seed: int) -> Recording:
    """Play every pod of the scene and return what a Prometheus would hold of it."""
    recording = Recording()
    for pod in range(scene.pods):
        _play_pod(scene, recording, pod=pod, seed=seed)
    return recording


def _play_pod(scene: Scene, recording: Recording, *, pod: int, seed: int) -> None:
    dice = random.Random(f"scrapes {pod} {seed}")
    engine = SimulatedEngine(scene.config, faults=scene.faults, seed=seed + pod)
    pending = list(reversed(requests_of(scene, pod=pod, seed=seed)))
    at, lost_last = dice.uniform(0, scene.interval), False
    stops = scene.seconds if scene.blind_after is None else scene.blind_after
    while at <= stops:
        if scene.restarted is not None and engine.started < scene.restarted <= at:
            engine = SimulatedEngine(scene.config, started=scene.restarted, seed=seed + pod)
            pending = [request for request in pending if request.arrival >= scene.restarted]
        while pending and pending[-1].arrival <= at:
            request = pending.pop()
            engine.advance(request.arrival)
            engine.submit(request)
        engine.advance(at)
        # Two lost in a row would be silence by the documented limit of three intervals, and not noise.
        lost_last = not lost_last and dice.random() < scene.lost
        if not lost_last:
            for sample in read_samples(render(engine.metrics, scene.config, created=EPOCH).splitlines()):
                recording.add(_labelled(sample, scene=scene, pod=pod), time=EPOCH + at)
        at += scene.interval


def _labelled(sample: Sample, *, scene: Scene, pod: int) -> Sample:
    value = sample.value
    if scene.deferred and sample.name in (REASON, "vllm:num_requests_waiting"):
        # The simulated engine defers nothing; what it would report is added to its own queue.
        value += scene.deferred * (("reason", "capacity") not in sample.labels)
    labels = (*sample.labels, ("namespace", "demo"), ("pod", f"chat-{pod}"))
    return Sample(name=sample.name, labels=labels, value=value, time=None)


async def named_windows(scene: Scene, *, seed: int) -> tuple[str, Sequence[DiagnosisClass]]:
    """Return what is true and the primary class of every scored evaluation, at the operator's pace."""
    ticks = [EPOCH + REMOTE_TICK * index for index in range(1, 1 + int(scene.seconds // REMOTE_TICK))]
    objectives = {
        name: {"quantile": "0.95", "target": f"{seconds * 1e3:.0f}ms"}
        for name, seconds in (("ttft", scene.ttft), ("tpot", scene.tpot))
        if seconds is not None
    }
    recording = scraped(scene, seed=seed)
    reports = await evaluate(
        recording,
        schedule=Schedule(
            ticks=tuple(ticks), shown=frozenset(tick for tick in ticks if tick >= EPOCH + scene.scored_from)
        ),
        grouping=one_service,
        subject=Subject(
            targets=targets_of(Objectives.model_validate(objectives)),
            knobs=EngineKnobs(
                max_num_seqs=scene.config.max_num_seqs,
                max_model_len=scene.config.max_model_len,
                tensor_parallel_size=1,
            ),
        ),
        settings=WindowSettings(),
    )
    named = [point.diagnosis.primary for report in reports for point in report.timeline]
    return await truth_of(scene, recording), named


async def truth_of(scene: Scene, recording: Recording) -> str:
    """Return the true class. Whether a full pool thrashes is known when it is played: classes are defined by that."""
    if scene.truth != "KVCacheSaturated":
        return scene.truth
    evicted, finished = [
        sum(
            plain_increase(series.values) or 0.0
            for series in await recording.ask(
                Samples(names=(name,), window=int(scene.seconds - scene.scored_from)), at=EPOCH + scene.seconds
            )
        )
        for name in ("vllm:num_preemptions_total", "vllm:request_success_total")
    ]
    return "PreemptionThrash" if evicted > THRASH * finished else scene.truth
