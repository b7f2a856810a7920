"""What `diagnose` was asked, read from text: every wrong value is refused here, with what to write instead.

Must not: open anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta

from pydantic import ValidationError

from vllm_autotuner.api.durations import parse_duration
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Objective, Objectives, Profile
from vllm_autotuner.change.verification import knobs_in
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Subject
from vllm_autotuner.cli.evaluate.metrics_source import RemotePrometheus, Source
from vllm_autotuner.cli.evaluate.service_groups import ServiceName
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.engine.flags import parse_command_line
from vllm_autotuner.observation.access import Access, PrometheusAddress

__all__ = ["Request", "duration_of", "one_of", "prometheus_of", "subject_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question. None: not asked for."""

    source: Source
    subject: Subject
    at: str | None = None
    """As typed: `+90s` can only be read once the recording is open."""
    every: float | None = None
    """Seconds."""
    back: float | None = None
    """Seconds before the moment asked about from which a Prometheus is evaluated. None: as few as a diagnosis needs."""
    everything: bool = False
    """True evaluates the whole source, for plots."""
    namespace: str | None = None
    service: str | None = None
    service_label: str | None = None

    def wanted(self, name: ServiceName) -> bool:
        """Whether the filters let this service through."""
        return self.namespace in (None, name.namespace) and self.service in (None, name.name)


def one_of(option: str, text: str, choices: Sequence[str]) -> str:
    """Return the choice in lower case. Raises CommandError."""
    if text.lower() not in choices:
        raise CommandError(f"{option} {text!r} is unknown: write {', '.join(choices[:-1])} or {choices[-1]}")
    return text.lower()


def duration_of(option: str, text: str) -> timedelta:
    """Read a duration above zero. Raises CommandError."""
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise CommandError(f"{option} {text!r}: {error}") from None
    if duration <= timedelta():
        raise CommandError(f"{option} {text!r}: write a duration above zero, such as 30s")
    return duration


def prometheus_of(url: str | None, *, access: Access) -> RemotePrometheus | None:
    """Put the way in to the address."""
    if url is None:
        return None
    given = {one.name: getattr(access, one.name) for one in fields(access)}
    return RemotePrometheus(PrometheusAddress(url=url, **given))


def subject_of(profile: str, *, ttft: str | None, tpot: str | None, quantile: str, engine_args: str | None) -> Subject:
    """Read what the services are held against. Raises CommandError, and FlagError for the engine's flags."""
    chosen = one_of("--profile", profile, [one.value.lower() for one in Profile])

    def objective(option: str, text: str | None) -> Objective | None:
        return None if text is None else Objective(quantile=quantile, target=duration_of(option, text))

    try:
        # Checked even where no objective uses it: a typing error must not be silent.
        Objective(quantile=quantile, target=timedelta(seconds=1))
        objectives = Objectives(
            profile=Profile(chosen.capitalize()), ttft=objective("--ttft", ttft), tpot=objective("--tpot", tpot)
        )
    except ValidationError as error:
        raise CommandError(f"--quantile {quantile!r}: write a number between 0 and 1 such as 0.95") from error
    targets = targets_of(objectives)
    # The quantile counts for the defaults of the profile as well: it is what the user wants to look at.
    targets = replace(
        targets,
        ttft=replace(targets.ttft, quantile=float(quantile)),
        tpot=replace(targets.tpot, quantile=float(quantile)),
    )
    return Subject(targets=targets, knobs=_knobs(engine_args))


def _knobs(engine_args: str | None) -> EngineKnobs:
    if engine_args is None:
        return EngineKnobs()
    flags = parse_command_line(engine_args)
    try:
        return knobs_in(flags)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "a value"
        raise CommandError(f"--engine-args: {name} {first['input']!r}: {first['msg']}") from error
