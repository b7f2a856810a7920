"""No exception of the layers below may slip out of `cluster`, and each answer says what to do next."""

import json
import ssl

import aiohttp
import pytest
from kubernetes.aio.client import exceptions
from kubernetes.aio.config.config_exception import ConfigException

from vllm_autotuner.cluster.errors import (
    LONGEST_RETRY_AFTER,
    TOO_LARGE,
    ClusterError,
    Conflict,
    NotFound,
    Refused,
    Unavailable,
    from_response,
    translated,
)


def every_subclass(base: type[Exception]) -> list[type[Exception]]:
    found = {base}
    for child in base.__subclasses__():
        found |= set(every_subclass(child))
    return sorted(found, key=lambda error: f"{error.__module__}.{error.__qualname__}")


def status(reason: str, message: str = "no", **details: object) -> bytes:
    return json.dumps({"kind": "Status", "reason": reason, "message": message, "details": details}).encode()


@pytest.mark.parametrize(
    ("code", "body", "expected", "reason"),
    [
        pytest.param(409, status("Conflict"), Conflict, "Conflict", id="a stale resourceVersion is read again"),
        pytest.param(409, status("AlreadyExists"), Conflict, "AlreadyExists", id="an existing name is read again"),
        pytest.param(
            422,
            status("Invalid", causes=[{"field": "metadata.uid", "reason": "FieldValueInvalid"}]),
            Conflict,
            "Invalid",
            id="an object that was re-created under us is read again",
        ),
        pytest.param(410, status("Expired"), Conflict, "Expired", id="an expired list is started again"),
        pytest.param(404, status("NotFound"), NotFound, "NotFound", id="a missing object is forgotten"),
        pytest.param(400, status("BadRequest"), Refused, "BadRequest", id="a malformed request is told"),
        pytest.param(403, status("Forbidden"), Refused, "Forbidden", id="missing RBAC is told"),
        pytest.param(405, b"", Refused, "HTTP405", id="a method the API does not have is told"),
        pytest.param(413, b"too large", Refused, "HTTP413", id="a request too large is told"),
        pytest.param(
            422,
            status("Invalid", causes=[{"field": "spec.replicas"}, "?"]),
            Refused,
            "Invalid",
            id="an invalid field is told",
        ),
        pytest.param(422, status("Invalid"), Refused, "Invalid", id="an invalid object is told"),
        pytest.param(401, status("Unauthorized"), Unavailable, "Unauthorized", id="a rotated token is waited for"),
        pytest.param(408, b"", Unavailable, "HTTP408", id="a request that took too long is tried next tick"),
        pytest.param(429, status("TooManyRequests"), Unavailable, "TooManyRequests", id="too many is tried later"),
        pytest.param(500, status("InternalError"), Unavailable, "InternalError", id="a failing server is tried later"),
        pytest.param(
            500,
            status(
                "Invalid",
                "failed to create typed patch object (prod/chat; apps/v1, Kind=Deployment): "
                ".spec.template.spec.nodeSelectr: field not declared in schema",
            ).replace(b'"reason": "Invalid"', b'"reason": ""'),
            Refused,
            "Invalid",
            id="an applied body with an unknown field is told",
        ),
        pytest.param(
            500,
            status(
                "Invalid",
                "failed to convert new object (prod/chat; apps/v1, Kind=Deployment) to proper version: unable to "
                "convert unstructured object to apps/v1, Kind=Deployment: quantities must match the regular expression",
            ).replace(b'"reason": "Invalid"', b'"reason": ""'),
            Refused,
            "Invalid",
            id="an applied body with a quantity that is none is told",
        ),
        pytest.param(500, b"etcdserver: request is too large", Refused, TOO_LARGE, id="an object too large is told"),
        pytest.param(503, b"<html>", Unavailable, "HTTP503", id="a proxy's error page is no answer"),
        pytest.param(302, b"", Unavailable, "HTTP302", id="a redirect to a login page is no answer"),
        pytest.param(504, b"[1]", Unavailable, "HTTP504", id="a body that is not an object is ignored"),
    ],
)
def test_answers_are_split_by_what_to_do_next(
    code: int, body: bytes, expected: type[ClusterError], reason: str
) -> None:
    error = from_response(status=code, body=body, headers={}, request="PATCH /x")
    assert type(error) is expected
    assert (error.status, error.reason) == (code, reason)
    assert str(error).startswith("PATCH /x: ")


def test_a_page_of_a_proxy_is_not_repeated() -> None:
    error = from_response(status=503, body=b"\n<html><h1>503</h1></html>", headers={}, request="GET /x")
    assert str(error) == "GET /x: HTTP503"


@pytest.mark.fault("T53")
@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        pytest.param({"Retry-After": "7"}, status("X"), 7.0, id="the header in seconds"),
        pytest.param({}, status("X", retryAfterSeconds=3), 3.0, id="the details of the Status"),
        pytest.param({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, status("X"), None, id="a date names no number"),
        pytest.param({"Retry-After": "-5"}, status("X"), 0.0, id="a negative number is now"),
        pytest.param({"Retry-After": "86400"}, status("X"), LONGEST_RETRY_AFTER, id="a day would stop every write"),
        pytest.param({"Retry-After": "1e400"}, status("X"), LONGEST_RETRY_AFTER, id="for ever"),
        pytest.param({}, status("X"), None, id="nothing named"),
        pytest.param({}, b"", None, id="no body"),
    ],
)
def test_the_servers_wish_to_wait_is_kept(headers: dict[str, str], body: bytes, seconds: float | None) -> None:
    error = from_response(status=429, body=body, headers=headers, request="POST /x")
    assert isinstance(error, Unavailable)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    "library_error",
    [*every_subclass(aiohttp.ClientError), *every_subclass(exceptions.OpenApiException)],
    ids=lambda error: error.__qualname__,
)
def test_library_errors_become_unavailable(library_error: type[Exception]) -> None:
    # Constructors and texts differ wildly and some print only with a real response: what counts is the type.
    plain = type("Plain", (library_error,), {"__init__": lambda self: None, "__str__": lambda self: "broken"})
    with pytest.raises(Unavailable), translated("GET /x"):
        raise plain()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        pytest.param(TimeoutError(), Unavailable, id="a timeout"),
        pytest.param(ConnectionResetError(), Unavailable, id="a reset connection"),
        pytest.param(ssl.SSLCertVerificationError("bad"), Unavailable, id="an untrusted certificate"),
        pytest.param(json.JSONDecodeError("x", "", 0), Unavailable, id="an answer that is not JSON"),
        pytest.param(ConfigException("empty"), Unavailable, id="a token file that is being replaced"),
        pytest.param(NotFound("x", reason="NotFound"), NotFound, id="our own error passes unchanged"),
    ],
)
def test_other_failures_below_become_ours(raised: Exception, expected: type[ClusterError]) -> None:
    with pytest.raises(expected) as caught, translated("GET /x"):
        raise raised
    assert str(caught.value)


def test_a_bug_of_ours_is_not_hidden_as_an_outage() -> None:
    with pytest.raises(KeyError), translated("GET /x"):
        raise KeyError("metadata")
