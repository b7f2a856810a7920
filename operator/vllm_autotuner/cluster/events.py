"""The body of an Event (events.k8s.io/v1), with a name that makes posting it twice impossible. Pure.

Apart from the adapter, because exactly-once lies in the name: the same transition of the same object has the same name,
and the API server answers a repeat with 409. That holds while the first Event lives (one hour by default).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

REPORTER: Final = "vllm-autotuner.dev/operator"
NOTE_LIMIT: Final = 1024
"""Bytes; the API refuses longer notes."""
_INSTANCE_LIMIT: Final = 128
_NAME_LIMIT: Final = 200
"""Characters of the object's name that stay readable in the Event's name; 253 is the API's limit for the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a VLLMService, for `kubectl describe`.

    `transition` identifies the occurrence, e.g. change id and state: equal means the same occurrence, posted once.
    """

    reason: str
    note: str
    action: str
    transition: str
    warning: bool = False


def event_body(event: Event, *, about: Mapping[str, Any], instance: str, now: datetime) -> dict[str, Any]:
    """Return the Event about this object, reported by this process. `now` must carry a time zone."""
    metadata = about["metadata"]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": event_name(event, name=metadata["name"], uid=metadata["uid"]),
            "namespace": metadata["namespace"],
        },
        "regarding": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "action": event.action,
        "note": _shortened(event.note),
        "reportingController": REPORTER,
        "reportingInstance": instance[:_INSTANCE_LIMIT],
        "eventTime": micro_time(now),
    }


def event_name(event: Event, *, name: str, uid: str) -> str:
    """Return the deterministic name: the object's, and a hash of (uid, reason, transition)."""
    identity = "\0".join((uid, event.reason, event.transition))
    return f"{name[:_NAME_LIMIT]}.{hashlib.sha256(identity.encode()).hexdigest()[:20]}"


def micro_time(moment: datetime) -> str:
    """Return the moment as a Kubernetes MicroTime, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _shortened(note: str) -> str:
    raw = note.encode()
    return note if len(raw) <= NOTE_LIMIT else raw[: NOTE_LIMIT - 3].decode(errors="ignore") + "..."
