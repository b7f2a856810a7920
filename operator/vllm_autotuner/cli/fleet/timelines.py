"""What the services of a fleet went through in a period, from Prometheus: few moments, each of the whole fleet at once.

Each service is held against its own objectives. Must not: fail for a moment that Prometheus does not answer; it is
counted instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.change.effective import serving_knobs
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Evaluation, ServiceReport, Subject
from vllm_autotuner.cli.evaluate.metrics_source import RemotePrometheus
from vllm_autotuner.cli.evaluate.moments import Schedule, sparse
from vllm_autotuner.cli.evaluate.service_groups import ServiceName, by_labels
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.observation.prometheus import PrometheusSource
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.planning.platform import platform_of

__all__ = ["Timelines", "moments", "timelines"]

LOOKS: Final = 84
"""Moments of a period: every two hours of a week. Each is a round of queries over the whole fleet, made twice."""
FAILED_IN_A_ROW: Final = 5
"""Moments without an answer after which a Prometheus is given up, as it is at the first: each may take a timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """The services that were there at the end of the period, and how many moments were not answered."""

    reports: Mapping[ServiceName, ServiceReport] = field(default_factory=dict)
    """By namespace and name of the VLLMService."""
    failed: int = 0
    looks: int = 0
    why: str = ""
    """Of the last failure."""


def moments(now: float, *, back: float) -> Schedule:
    """The moments of a period of `back` seconds."""
    return sparse(now, back=back, pace=None, most=LOOKS)


async def timelines(
    services: Sequence[VLLMService],
    source: RemotePrometheus,
    *,
    schedule: Schedule,
    catalogue: Catalogue,
    looked: Callable[[], None],
) -> Timelines:
    """Evaluate the services at every moment. Raises CommandError where Prometheus never answers, or stops."""
    found = {_workload(service): service for service in services}
    subjects = {name: _subject(service, catalogue) for name, service in found.items()}
    client = PrometheusSource(source.address)
    failed, in_a_row, why = 0, 0, ""
    try:
        evaluation = Evaluation(
            client,
            grouping=by_labels(None),
            subject=next(iter(subjects.values())),
            settings=WindowSettings(),
            wanted=subjects.__contains__,
            subject_of=subjects.__getitem__,
        )
        for at in schedule.ticks:
            try:
                await evaluation.look(at)
                in_a_row = 0
            except CommandError as error:
                failed, in_a_row, why = failed + 1, in_a_row + 1, str(error)
                if at == schedule.ticks[0] or in_a_row == FAILED_IN_A_ROW:
                    raise
            looked()
        reports = {
            ServiceName(found[each.service].metadata.namespace, found[each.service].metadata.name): each
            for each in evaluation.reports()
        }
    finally:
        await client.close()
    return Timelines(reports=reports, failed=failed, looks=len(schedule.ticks), why=why)


def _workload(service: VLLMService) -> ServiceName:
    """The Deployment whose pods are the service."""
    target = service.spec.target_ref
    return ServiceName(service.metadata.namespace, service.metadata.name if target is None else target.name)


def _subject(service: VLLMService, catalogue: Catalogue) -> Subject:
    spec, status = service.spec, service.status
    return Subject(
        targets=targets_of(spec.objectives),
        knobs=serving_knobs(spec, status),
        tuning=spec.tuning,
        platform_of=lambda seen: platform_of(spec, catalogue=catalogue),
    )
