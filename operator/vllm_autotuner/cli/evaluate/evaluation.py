"""Evaluating one moment after the other with the operator's own functions, without what only Kubernetes reports.

Must not: hold a threshold, or print.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Scaling, Tuning
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.levels import Levels, levels_of
from vllm_autotuner.cli.evaluate.moments import Schedule
from vllm_autotuner.cli.evaluate.service_groups import Grouping, ServiceName
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History, case_of, diagnose
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.observation import Observation, observe
from vllm_autotuner.observation.questions import MetricsSource
from vllm_autotuner.observation.snapshot import EngineKey, FleetSnapshot, WindowSettings, take_snapshot
from vllm_autotuner.planning import plan as planning
from vllm_autotuner.planning.platform import Platform
from vllm_autotuner.planning.situation import Situation

__all__ = ["Evaluated", "Evaluation", "ServiceReport", "Subject", "evaluate"]

MOST_KEPT: Final = 20_000
"""Evaluations of one service that are remembered: a day at 5 s. A live view that runs for weeks must not grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What every service is held against."""

    targets: Targets
    knobs: EngineKnobs
    """The flags in effect, where the user gave them."""
    flags_known: bool = True
    """Whether what is not among them is the engine's default; False where nobody gave any."""
    tuning: Tuning = field(default_factory=Tuning)
    """Bounds, where a VLLMService has them; without any, everything is recommended only."""
    scaling: Scaling | None = None
    replicas: int | None = None
    """Replicas that are asked for; None: as many as report."""
    failed: tuple[tuple[str, str], ...] = ()
    """Knobs and values that were rolled back, where a VLLMService remembers."""
    left: tuple[tuple[str, str], ...] = ()
    """Those that a kept change has left lately, likewise."""
    infeasible: tuple[EngineKnobs, ...] = ()
    """Configurations that ran out of memory, likewise."""
    too_few: Callable[[Observation], int] = lambda seen: 0
    """The most replicas that were too few at a load like that of now, likewise."""
    platform_of: Callable[[str], Platform] = lambda model: Platform()
    """From the model's name in the metrics to what it runs on."""
    doubtful: bool = False
    """True where there are fewer samples than a state is judged over: then no answer is a confident one."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One point of a timeline."""

    time: float
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport:
    """One service at the moment asked about, and its timeline where one was asked for."""

    service: ServiceName
    model: str
    targets: Targets
    observation: Observation
    diagnosis: Diagnosis
    plan: planning.Plan
    timeline: tuple[Evaluated, ...] = ()
    turns: tuple[Evaluated, ...] = ()
    """Every evaluation at which another class was named than before, the first one included."""
    levels: tuple[Levels, ...] = ()
    """Every evaluation, for plots."""

    @property
    def blind(self) -> bool:
        """Whether nothing can be said about this service."""
        return self.diagnosis.primary is DiagnosisClass.METRICS_BLIND


@dataclass(slots=True)
class _Track:
    """A service while its moments pass."""

    history: History = field(default_factory=History)
    points: list[Evaluated] = field(default_factory=list)
    turns: deque[Evaluated] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    levels: deque[Levels] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    last: tuple[Case, Diagnosis] | None = None


class Evaluation:
    """Services over the moments that are looked at, one after the other."""

    def __init__(
        self,
        source: MetricsSource,
        *,
        grouping: Grouping,
        subject: Subject,
        settings: WindowSettings,
        wanted: Callable[[ServiceName], bool] = lambda service: True,
        subject_of: Callable[[ServiceName], Subject] | None = None,
    ) -> None:
        """`subject_of`: where services have objectives of their own; `subject` is that of all others."""
        self._source, self._grouping, self.subject = source, grouping, subject
        self._subject_of = subject_of or (lambda service: self.subject)
        self._settings, self._wanted = settings, wanted
        self._tracks: dict[ServiceName, _Track] = {}
        self._found: Sequence[ServiceName] = ()

    async def look(self, at: float, *, shown: bool = False) -> None:
        """Evaluate the moment `at` (Unix seconds), not before the last one. `shown`: it belongs to the timeline.

        Raises CommandError when the source fails: here, unlike in the operator, a person waits and can look.
        """
        snapshot = await take_snapshot(self._source, at=at, settings=self._settings)
        if snapshot.error is not None:
            raise CommandError(snapshot.error.why)
        groups = {service: keys for service, keys in self._grouping(snapshot).items() if self._wanted(service)}
        for service, keys in groups.items():
            track = self._tracks.setdefault(service, _Track())
            _evaluate_one(track, snapshot=snapshot, keys=keys, subject=self._subject_of(service))
            if track.last is not None and shown:
                track.points.append(Evaluated(at, track.last[1]))
        self._found = tuple(groups)

    def reports(self) -> Sequence[ServiceReport]:
        """Report the services that were there at the last moment."""
        return [_report(service, self._tracks[service], subject=self._subject_of(service)) for service in self._found]


async def evaluate(
    source: MetricsSource,
    *,
    schedule: Schedule,
    grouping: Grouping,
    subject: Subject,
    settings: WindowSettings,
    wanted: Callable[[ServiceName], bool] = lambda service: True,
    evaluated: Callable[[], None] = lambda: None,
) -> Sequence[ServiceReport]:
    """Evaluate the schedule in order and report the services that are there at its last moment.

    Raises CommandError when the source fails.
    """
    evaluation = Evaluation(source, grouping=grouping, subject=subject, settings=settings, wanted=wanted)
    for at in schedule.ticks:
        await evaluation.look(at, shown=at in schedule.shown)
        evaluated()
    return evaluation.reports()


def _evaluate_one(track: _Track, *, snapshot: FleetSnapshot, keys: frozenset[EngineKey], subject: Subject) -> None:
    observation = observe(snapshot, keys)
    observation = observation.of_mixture(subject.platform_of(_model_of(observation)).shape.experts)
    case = case_of(observation, targets=subject.targets, knobs=subject.knobs, history=track.history)
    named, track.history = diagnose(case, history=track.history)
    if subject.doubtful:
        named = replace(named, confidence=Confidence.LOW)
    if track.last is None or track.last[1].primary is not named.primary:
        track.turns.append(Evaluated(snapshot.at, named))
    track.last = (case, named)
    track.levels.append(levels_of(case, named=named.primary))


def _model_of(observation: Observation) -> str:
    return next(filter(None, (engine.labels.get("model_name", "") for engine in observation.engines)), "")


def _report(service: ServiceName, track: _Track, *, subject: Subject) -> ServiceReport:
    assert track.last is not None
    case, diagnosis = track.last
    observation = case.observation
    model = _model_of(observation)
    situation = Situation(
        case=case,
        diagnosis=diagnosis,
        tuning=subject.tuning,
        scaling=subject.scaling,
        replicas=subject.replicas or len(observation.reporting),
        failed=subject.failed,
        left=subject.left,
        infeasible=subject.infeasible,
        too_few=subject.too_few(observation),
        flags_known=subject.flags_known,
        platform=subject.platform_of(model),
    )
    return ServiceReport(
        service=service,
        model=model,
        targets=subject.targets,
        observation=observation,
        diagnosis=diagnosis,
        plan=planning.plan(situation),
        timeline=tuple(track.points),
        turns=tuple(track.turns),
        levels=tuple(track.levels),
    )
