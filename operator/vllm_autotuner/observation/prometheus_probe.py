"""One-off Prometheus queries for the `doctor` command, through prometheus-api-client.

Separate from `prometheus.py`, which the operator uses in each tick: here a server's warning is a finding, not an error,
and blocking calls are acceptable. Must not: judge an answer, or show a credential.
"""

import json
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

import requests
import urllib3
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from typing_extensions import override

from vllm_autotuner.budgets import ANSWER_BYTES
from vllm_autotuner.observation.access import Access, PrometheusAddress, TrustedConnection, advised, scrubbed, shown_url
from vllm_autotuner.observation.errors import (
    Denied,
    NotAccepted,
    Overloaded,
    Rejected,
    SourceError,
    TimedOut,
    Unreachable,
    Unusable,
    UnusableFile,
)
from vllm_autotuner.observation.prometheus import refuse_unusable_url
from vllm_autotuner.observation.series import Series

__all__ = ["PrometheusProbe"]

CHUNK: Final = 256 * 1024
"""Bytes read at a time."""


class PrometheusProbe:
    """Instant queries at the server's own now. `warnings` gathers what the server said beside its answers."""

    def __init__(self, address: PrometheusAddress) -> None:
        """Raises Rejected for a URL, a CA file or a client certificate that can never work."""
        refuse_unusable_url(address.url)
        # The library reads the files with the first handshake only, and tells what is wrong in words of its own.
        TrustedConnection(address)
        self.warnings: list[str] = []
        self.status = 0
        self._address, self._shown = address, shown_url(address.url)
        session = requests.Session()
        session.verify = False if address.insecure else (str(address.ca_file) if address.ca_file else True)
        if address.client_cert is not None:
            key = address.client_key or address.client_cert
            session.cert = (str(address.client_cert), str(key))
        if address.insecure:
            # The user asked for it by name; a warning at each request says nothing new.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        session.auth = _Headers(address)
        session.hooks["response"].append(self._remember)
        url = address.url.rstrip("/")
        library: Any = PrometheusConnect
        self._connect = library(url=url, session=session, timeout=address.timeout.total_seconds(), method="POST")
        # After the library's own, so that this one serves: it does not retry and reads no more than it may.
        if address.request_headers():
            for scheme in ("http://", "https://"):
                session.mount(scheme, _Elsewhere(self._shown))
        session.mount(url, _Bounded(place=self._shown, patience=address.timeout.total_seconds()))

    def close(self) -> None:
        """Give the connections back."""
        self._connect.close()

    def instant(self, expression: str) -> Sequence[Series]:
        """Run one instant query. Raises SourceError; Denied for missing permission."""
        headers = self._address.request_headers()
        try:
            return _series_of(self._connect.custom_query(query=expression))
        except PrometheusApiClientException as error:
            raise self._kind()(
                scrubbed(f"{self._shown} answered {self.status}: {_why(error)}", headers=headers)
            ) from error
        except requests.exceptions.InvalidJSONError as error:
            raise Unusable(f"{self._shown} answered {self.status}, but is not a Prometheus API") from error
        except (requests.Timeout, urllib3.exceptions.TimeoutError) as error:
            limit = self._address.timeout.total_seconds()
            raise TimedOut(f"{self._shown} did not answer within {limit:g} s") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            why = advised(_short(_innermost(error)))
            raise Unreachable(scrubbed(f"cannot reach {self._shown}: {why}", headers=headers)) from error
        except OSError as error:
            raise UnusableFile(f"cannot use the certificates for {self._shown}: {_short(error)}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unusable(f"{self._shown} answered JSON, but is not a Prometheus API") from error

    def _kind(self) -> type[SourceError]:
        if self.status in (401, 403):
            return NotAccepted if self.status == 401 else Denied
        return Overloaded if self.status in (422, 429) or self.status >= 500 else Rejected

    def _remember(self, response: Any, *_: object, **__: object) -> None:
        self.status = response.status_code
        try:
            body = response.json()
        except ValueError:
            return
        warnings = body.get("warnings") if isinstance(body, dict) else None
        if warnings:
            # Some servers put one text where the API has a list.
            self.warnings += [str(one) for one in (warnings if isinstance(warnings, list) else [warnings])]


class _Headers(AuthBase):
    """Sets the headers of an access on each request: files are read again, and no ~/.netrc takes their place."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @override
    def __call__(self, request: Any) -> Any:
        request.headers.update(self._access.request_headers())
        return request


class _Elsewhere(HTTPAdapter):
    """Refuses what is not below the address that was named: only a redirect leads there, with the user's headers."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place

    @override
    def send(self, request: Any, *_: Any, **__: Any) -> Any:
        other = shown_url(str(request.url))
        raise Rejected(f"{self._place} redirects to {other}, which would get your headers: name it if you trust it")


class _Bounded(HTTPAdapter):
    def __init__(self, *, place: str, patience: float) -> None:
        super().__init__(max_retries=0)
        self._place, self._patience = place, patience

    @override
    def send(
        self,
        request: Any,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Any:
        response = super().send(request, stream=True, timeout=timeout, verify=verify, cert=cert, proxies=proxies)
        body, asked = bytearray(), monotonic()
        # What is there, not a whole chunk: a server that sends a byte now and then would never let go.
        while chunk := response.raw.read1(CHUNK, decode_content=True):
            body += chunk
            if len(body) > ANSWER_BYTES.limit:
                response.close()
                raise Unusable(f"{self._place} sent more than {ANSWER_BYTES.limit // 2**20} MiB, too much for metrics")
            if monotonic() - asked > self._patience:
                response.close()
                raise TimedOut(f"{self._place} did not answer within {self._patience:.0f} s")
        response._content = bytes(body)
        return response


def _series_of(result: Any) -> Sequence[Series]:
    if isinstance(result, list) and len(result) == 2 and not isinstance(result[0], dict):
        result = [{"metric": {}, "value": result}]  # a scalar, such as time()
    found = []
    for entry in result:
        if "histogram" in entry or "histograms" in entry:
            continue  # no vLLM exports a native histogram: of such a series there is nothing to check
        points = entry["values"] if "values" in entry else [entry["value"]]
        values = [float(value) for _, value in points]
        found.append(Series(labels=entry["metric"], times=[float(time) for time, _ in points], values=values))
    return found


def _why(error: Exception) -> str:
    # The library puts the raw body into its message: HTTP Status Code 400 (b'{"error": ...}').
    text = str(error)
    start, end = text.find("{"), text.rfind("}")
    try:
        return str(json.loads(text[start : end + 1].encode().decode("unicode_escape"))["error"])[:200]
    except (ValueError, KeyError, TypeError):
        return text.partition("(b")[2][1:-2][:200] or text[:200]


def _innermost(error: BaseException) -> BaseException:
    """The library wraps the reason two or three times, each time in the words of its connection pool."""
    while inner := getattr(error, "reason", None) or error.__cause__ or error.__context__:
        if not isinstance(inner, Exception):
            break
        error = inner
    return error


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
