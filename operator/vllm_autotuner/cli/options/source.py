"""Where the metrics come from, and which services of a Prometheus are evaluated.

Each option is defined once; a command takes the group of the sources that it can read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import typer

__all__ = ["AnySource", "LiveSource", "OptionalPrometheus", "ServiceFilter", "StoredSource"]

_PrometheusURL: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URL", help="Query a Prometheus (also Thanos or Mimir).")
]
_EngineURLs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="Scrape an engine directly. Repeat for several engines of one service."),
]
_Match: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL=VALUE",
        help="Only series of --prometheus with this label, such as cluster=eu; also !=, =~ and !~. Repeatable.",
    ),
]
_RecordingFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--recording",
        "--offline",
        metavar="FILE",
        help="Read a recording made with `vllm-autotuner record` (.om or .om.gz).",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource:
    """Metrics of now."""

    PANEL: ClassVar = "Source (exactly one)"

    prometheus: _PrometheusURL = None
    match: _Match = None
    metrics: _EngineURLs = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalPrometheus:
    """Metrics beside what objects say."""

    PANEL: ClassVar = "Source"

    prometheus: _PrometheusURL = None
    match: _Match = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSource:
    """Metrics with history."""

    PANEL: ClassVar = "Source"

    prometheus: _PrometheusURL = None
    match: _Match = None
    recording: _RecordingFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnySource:
    """Metrics of now or with history."""

    PANEL: ClassVar = "Source (exactly one)"

    prometheus: _PrometheusURL = None
    match: _Match = None
    metrics: _EngineURLs = None
    recording: _RecordingFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFilter:
    """Which services of a Prometheus."""

    PANEL: ClassVar = "Services (with --prometheus)"

    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Evaluate only this namespace.")
    ] = None
    service: Annotated[str | None, typer.Option(metavar="NAME", help="Evaluate only this service.")] = None
    service_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Label that holds the service's name. Default: the pod's workload, else the model.",
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether any of them was given."""
        return (self.namespace, self.service, self.service_label) != (None, None, None)
