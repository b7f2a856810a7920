"""Errors of Kubernetes API requests, split by what to do next. No library exception leaves `cluster`.

* ClusterError
  - Conflict      409, 410, a uid that changed, or a precondition of ours -> read again, decide again
  - NotFound      404                                                     -> forget the object
  - Refused       other 4xx, an apply that is no object of its kind       -> tell the admin; asking again fails too
                  (500), or an object not ours
  - Unavailable   no answer, 401, 408, 429, 5xx                           -> next tick, not before `retry_after`

Apart from the client, because callers match on these types and must not see which library made the request.
Must not: retry (the next tick does, and `adapter` for 429), log (the caller knows what it was doing).
"""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from kubernetes.aio.client.exceptions import OpenApiException
from kubernetes.aio.config.config_exception import ConfigException

NOT_OWNED: Final = "NotOwned"
"""The object exists and has another owner. Remedy: rename it, or delete it."""
TERMINATING: Final = "Terminating"
"""The object is on its way out; its name is free in a moment."""
NEWER_EPOCH: Final = "NewerEpoch"
"""A later leader wrote the object: this process lost the lease without having noticed yet."""
NOT_LEADER: Final = "NotLeader"
"""The lease was lost while the write waited for its turn."""
READ_ONLY: Final = "ReadOnly"
"""The operator only looks (`run --read-only`), and tried to write all the same."""
NO_ANSWER: Final = "NoAnswer"
"""The connection failed or timed out. The request may have been executed."""
UNREADABLE: Final = "Unreadable"
"""An answer that is not what the API promises, e.g. a proxy's login page."""
NOT_CONFIGURED: Final = "NotConfigured"
"""There is no usable kubeconfig and no service account to connect with."""

UNTYPED_PATCH: Final = ("failed to create typed patch object", "failed to convert new object")
"""How the API server begins its 500 for an applied body with an unknown field, a wrong type or a doubled list item; the
second for a quantity that is none. It is the body's fault, and repeats for as long as the body is the same."""

TOO_LARGE: Final = "TooLarge"
"""The object is larger than etcd allows (1.5 MiB), which its owner can mend. Its own reason, for it is told as 500."""
_LARGER_THAN_ETCD_ALLOWS: Final = "etcdserver: request is too large"

LONGEST_RETRY_AFTER: Final = 30.0
"""Seconds; more is taken as this. The API server asks for 1 s to 5 s, and a proxy before it for as much as it likes:
meanwhile no write is made, no rollback either. Our choice: two ticks."""

UNAUTHORIZED: Final = 401
"""The HTTP status of credentials that the API does not accept."""
FORBIDDEN: Final = 403
"""The HTTP status of a missing permission, which only an administrator can give."""
TOO_MANY_REQUESTS: Final = 429
"""The HTTP status of a request that was not executed, for want of time."""


class ClusterError(Exception):
    """A request to the Kubernetes API that had no effect we know of.

    `reason` is a constant: the API's own (`AlreadyExists`, `Forbidden`, ...) or one of this module.
    `status` is the HTTP status, None when there was no answer or the refusal is our own.
    """

    def __init__(self, message: str, *, reason: str, status: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


class Conflict(ClusterError):
    """The object is not what the request assumed. Read it again and decide again."""


class NotFound(ClusterError):
    """The object, its namespace, or its kind does not exist."""


class Refused(ClusterError):
    """The request is wrong, forbidden, or about an object that is not ours. Asking again cannot help."""


class Unavailable(ClusterError):
    """The API gave no usable answer now. `retry_after` is the server's wish in seconds, None when it named none."""

    def __init__(
        self, message: str, *, reason: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, reason=reason, status=status)
        self.retry_after = retry_after


_UNAVAILABLE: Final = frozenset({UNAUTHORIZED, 408, 425, TOO_MANY_REQUESTS})
"""4xx that pass by themselves. 401: a rotated token is read again from its file within a minute."""


def from_response(*, status: int, body: bytes, headers: Mapping[str, str], request: str) -> ClusterError:
    """Turn an HTTP answer outside 2xx into an error. `request` names it for people, e.g. `PATCH deployments/chat`."""
    answer = _status_object(body)
    reason = str(answer.get("reason") or f"HTTP{status}")
    plain = "" if body.lstrip().startswith(b"<") else body[:200].decode(errors="replace")
    told = str(answer.get("message") or plain or reason)
    message = f"{request}: {told}"
    if status in (409, 410) or "metadata.uid" in _fields_of(answer):
        # A uid that does not fit is "invalid" (422) to the API: the object was deleted and created again under us.
        return Conflict(message, reason=reason, status=status)
    if status == 404:
        return NotFound(message, reason=reason, status=status)
    if status == 500 and told.startswith(UNTYPED_PATCH):
        return Refused(message, reason="Invalid", status=status)
    if status == 500 and told.startswith(_LARGER_THAN_ETCD_ALLOWS):
        return Refused(message, reason=TOO_LARGE, status=status)
    if 400 <= status < 500 and status not in _UNAVAILABLE:
        return Refused(message, reason=reason, status=status)
    return Unavailable(message, reason=reason, status=status, retry_after=_retry_after(answer, headers))


@contextmanager
def translated(request: str) -> Iterator[None]:
    """Let nothing but ClusterError out of the block. Cancellation passes: it is not a failure."""
    try:
        yield
    except ClusterError:
        raise
    except (TimeoutError, aiohttp.ClientError, ssl.SSLError, OSError) as error:
        raise Unavailable(f"{request}: {str(error) or type(error).__name__}", reason=NO_ANSWER) from error
    except (OpenApiException, ConfigException, ValueError) as error:
        raise Unavailable(f"{request}: {error}", reason=UNREADABLE) from error


def _status_object(body: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _fields_of(answer: Mapping[str, Any]) -> list[Any]:
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return [cause.get("field") for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []


def _retry_after(answer: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
    details = answer.get("details")
    named = headers.get("Retry-After") or (details.get("retryAfterSeconds") if isinstance(details, dict) else None)
    try:
        # The header may be an HTTP date, which the API server never sends: it is ignored.
        return min(max(0.0, float(named)), LONGEST_RETRY_AFTER) if named is not None else None
    except (TypeError, ValueError):
        return None
