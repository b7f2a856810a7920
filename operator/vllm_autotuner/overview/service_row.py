"""One row of the fleet table, from a VLLMService as it is stored. Pure.

Must not: judge. Everything but the order is in the object's status.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from vllm_autotuner.api.wording import told_advice
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.overview.class_looks import Look, Severity, look_of

__all__ = ["ServiceRow", "as_dict", "row_of", "worst_first"]

NO_DIAGNOSIS: Final = "-"
ALARMS: Final = ("RollbackFailed", "Stalled", "CircuitOpen", "OwnershipConflict", "Paused")
"""Conditions that need a person, the most urgent first. They exist only while they hold."""
EXPLAINED: Final = frozenset({"RollbackFailed", "Stalled", "OwnershipConflict"})
"""Those whose reason stands in their message alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRow:
    """What is shown of one service; None where the status does not say."""

    namespace: str
    name: str
    mode: str
    diagnosis: str
    since: str | None
    message: str
    ready: str
    """As `kubectl get deployment` shows it: ready replicas of the requested ones."""
    effective: str | None
    ttft: str | None
    tpot: str | None
    kv_usage: str | None
    next: str
    """The change under way, else the recommendation, else empty."""
    conditions: tuple[str, ...]
    """Of `ALARMS`, those that hold."""

    @property
    def look(self) -> Look | None:
        """How its class is shown; None before the first diagnosis, and for a class of another version."""
        try:
            return look_of(DiagnosisClass(self.diagnosis))
        except ValueError:
            return None


def row_of(body: Mapping[str, Any]) -> ServiceRow:
    """Return the row of one object."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    diagnosis, summary = status.get("diagnosis") or {}, status.get("summary") or {}
    effective = status.get("effective") or {}
    holds = {each["type"]: each for each in status.get("conditions") or [] if each.get("status") == "True"}
    alarms = tuple(each for each in ALARMS if each in holds)
    return ServiceRow(
        namespace=metadata["namespace"],
        name=metadata["name"],
        mode=(spec.get("tuning") or {}).get("mode") or "Recommend",
        diagnosis=diagnosis.get("class") or NO_DIAGNOSIS,
        since=diagnosis.get("since"),
        message=_message(status, alarm=next((holds[each] for each in alarms if each in EXPLAINED), None)),
        ready=f"{status.get('readyReplicas') or 0}/{effective.get('replicas') or '?'}",
        effective=summary.get("effective"),
        ttft=summary.get("ttft"),
        tpot=summary.get("tpot"),
        kv_usage=summary.get("kvUsage"),
        next=_next(status, summary),
        conditions=alarms,
    )


def _message(status: Mapping[str, Any], *, alarm: Mapping[str, Any] | None) -> str:
    """What needs a person before what the engines do: of a service that is refused no engine tells anything."""
    diagnosis = status.get("diagnosis") or {}
    told = (alarm or {}).get("message") or diagnosis.get("message")
    return str(told or ("" if status else "no status yet: is the operator running?"))


def worst_first(rows: Iterable[ServiceRow]) -> list[ServiceRow]:
    """Order by what needs a person, then by the severity of the class, then by how long it has lasted."""
    return sorted(rows, key=lambda row: (-_urgency(row), -_severity(row), row.since or "", row.namespace, row.name))


def as_dict(row: ServiceRow) -> dict[str, Any]:
    """The row for programs: the names of its fields in camel case, as in the object."""
    named = {"kv_usage": "kvUsage"}
    return {named.get(name, name): value for name, value in asdict(row).items()}


def _next(status: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    if change := summary.get("change"):
        return str(change)
    advice = status.get("recommendation")
    if not advice:
        return ""
    return f"recommends {told_advice(advice)}"


def _urgency(row: ServiceRow) -> int:
    return max((len(ALARMS) - ALARMS.index(each) for each in row.conditions), default=0)


def _severity(row: ServiceRow) -> Severity:
    look = row.look
    return Severity.UNSURE if look is None else look.severity
