"""What every part of the process node says about API objects: their type here, their times, and why one cannot run."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

Object: TypeAlias = dict[str, Any]
"""An API object as JSON. The agent reads a handful of fields of each, so models would be longer than their use."""

SERVICE_ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Unstartable(Exception):
    """A container cannot start now, but may later. `reason` is the kubelet's word, shown as the waiting reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def utc_now() -> datetime:
    """Read the clock. The one place of the process node that does: it is part of the world, not of the product."""
    return datetime.now(UTC)


def uid_of(item: Object) -> str:
    """Return `metadata.uid`."""
    return str(item["metadata"]["uid"])


def key_of(item: Object) -> str:
    """Return `namespace/name`."""
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def rfc3339(moment: datetime) -> str:
    """Return an aware UTC time as the API writes it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """Return an aware UTC time with microseconds (Leases and Events)."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
