"""The request behind a diagnosis, read from options. A wrong value is refused with what to write instead.

Must not: open a source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta

from pydantic import ValidationError

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Objective, Objectives, Profile
from vllm_autotuner.change.verification import knobs_in
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Subject
from vllm_autotuner.cli.evaluate.metrics_source import RemotePrometheus, Source
from vllm_autotuner.cli.evaluate.service_groups import ServiceName
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.options.platform_options import PlatformOptions, load_catalogue
from vllm_autotuner.cli.options.source import ServiceFilter
from vllm_autotuner.cli.options.values import duration_of, one_of
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.engine.flags import TUNED_FLAGS, parse_command_line
from vllm_autotuner.observation.access import Access, PrometheusAddress
from vllm_autotuner.observation.label_matchers import matcher

__all__ = ["Request", "prometheus_of", "subject_from", "typed_subject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to evaluate. None: not given."""

    source: Source
    subject: Subject
    at: str | None = None
    """As typed: `+90s` can only be read once the recording is open."""
    every: float | None = None
    """Seconds."""
    back: float | None = None
    """Seconds before `at` from which a Prometheus is evaluated. None: as few as a diagnosis needs."""
    everything: bool = False
    """True evaluates the whole source, for plots."""
    services: ServiceFilter = field(default_factory=ServiceFilter)

    def wanted(self, name: ServiceName) -> bool:
        """Whether the filters let this service through."""
        return self.services.namespace in (None, name.namespace) and self.services.service in (None, name.name)


def prometheus_of(url: str | None, *, match: Sequence[str] | None, access: Access) -> RemotePrometheus | None:
    """Combine the URL with label matchers and credentials. Raises CommandError."""
    if url is None:
        if match:
            raise CommandError("--match selects series of a --prometheus URL: name one")
        return None
    try:
        matchers = tuple(map(matcher, match or ()))
    except ValueError as error:
        raise CommandError(f"--match: {error}") from None
    given = {one.name: getattr(access, one.name) for one in fields(access)}
    return RemotePrometheus(PrometheusAddress(url=url, match=matchers, **given))


def subject_from(objectives: ObjectiveOptions, *, engine_args: str | None) -> Subject:
    """Read what the services are judged against. Raises CommandError, and FlagError for the engine's flags."""
    quantile = objectives.quantile
    chosen = one_of("--profile", objectives.profile, [one.value.lower() for one in Profile])

    def objective(option: str, text: str | None) -> Objective | None:
        return None if text is None else Objective(quantile=quantile, target=duration_of(option, text))

    try:
        # Checked even where no objective uses it: a typing error must not be silent.
        Objective(quantile=quantile, target=timedelta(seconds=1))
        wanted = Objectives(
            profile=Profile(chosen.capitalize()),
            ttft=objective("--ttft", objectives.ttft),
            tpot=objective("--tpot", objectives.tpot),
        )
    except ValidationError as error:
        raise CommandError(f"--quantile {quantile!r}: write a number between 0 and 1 such as 0.95") from error
    targets = targets_of(wanted)
    # The quantile counts for the defaults of the profile as well: it is what the user wants to look at.
    targets = replace(
        targets,
        ttft=replace(targets.ttft, quantile=float(quantile)),
        tpot=replace(targets.tpot, quantile=float(quantile)),
    )
    return Subject(targets=targets, knobs=_knobs(engine_args), flags_known=engine_args is not None)


def typed_subject(objectives: ObjectiveOptions, platform: PlatformOptions) -> Subject:
    """Objectives, running values and platform, all from options. Raises CommandError and FlagError."""
    subject = subject_from(objectives, engine_args=platform.engine_args)
    return replace(subject, platform_of=platform.platforms(load_catalogue(platform.catalogue)))


def _knobs(engine_args: str | None) -> EngineKnobs:
    if engine_args is None:
        return EngineKnobs()
    flags = parse_command_line(engine_args)
    for word in engine_args.split():
        if word.partition("=")[0].replace("_", "-") in TUNED_FLAGS:
            raise CommandError(f"--engine-args: {word!r} is no flag; write --{word}")
    try:
        return knobs_in(flags)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "a value"
        raise CommandError(f"--engine-args: {name} {first['input']!r}: {first['msg']}") from error
