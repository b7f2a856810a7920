"""The Prometheus HTTP API (also Thanos, Mimir): the only module of the product that imports httpx.

No retries inside a tick: the next tick is the retry. Partial answers are errors, because half a fleet looks like an
idle fleet. Must not: decide, or turn an empty answer into a number.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from vllm_autotuner.observation.errors import Overloaded, Rejected, Unreachable, Unusable
from vllm_autotuner.observation.questions import Question, promql
from vllm_autotuner.observation.series import Series

__all__ = ["PrometheusAddress", "PrometheusSource", "fetch_page", "refuse_unusable_url"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAddress:
    """Where a Prometheus answers and how to be let in. Files are read again on each query, so rotation just works."""

    url: str
    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: timedelta = timedelta(seconds=10)
    """A query that takes longer is a failed query. Longer delays the loop, shorter fails on big fleets. Our choice."""


class PrometheusSource:
    """Answers questions by instant queries."""

    def __init__(self, address: PrometheusAddress, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Raises Rejected for a URL or a CA file that can never work."""
        self._address = address
        refuse_unusable_url(address.url)
        verify: ssl.SSLContext | bool = True
        if address.ca_file is not None:
            try:
                verify = ssl.create_default_context(cafile=address.ca_file)
            except OSError as error:
                raise Rejected(f"cannot read the CA file {address.ca_file}: {error.strerror or error}") from error
        try:
            self._client = httpx.AsyncClient(
                base_url=address.url.rstrip("/") + "/",
                timeout=address.timeout.total_seconds(),
                limits=httpx.Limits(max_connections=8),
                verify=verify,
                transport=transport,
                follow_redirects=True,
            )
        except httpx.InvalidURL as error:
            raise Rejected(f"{address.url} is not a URL: {error}") from error

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        """See MetricsSource.ask."""
        return await self.query(promql(question), at=at)

    async def query(self, expression: str, *, at: float) -> Sequence[Series]:
        """Run one instant query at `at` (Unix seconds). Raises SourceError."""
        limit = self._address.timeout.total_seconds()
        form = {"query": expression, "time": f"{at:.3f}", "timeout": f"{limit:.0f}s", "partial_response": "false"}
        try:
            # httpx times single socket operations; a server that trickles would hold the tick without this deadline.
            async with asyncio.timeout(limit + 1):
                response = await self._client.post("api/v1/query", data=form, headers=self._headers())
        except TimeoutError as error:
            raise Unreachable(f"{self._address.url} did not answer within {limit:.0f} s") from error
        except UnicodeError as error:
            raise Rejected(f"the headers for {self._address.url} hold characters that HTTP does not know") from error
        except (httpx.TransportError, httpx.TooManyRedirects, httpx.DecodingError) as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(f"cannot reach {self._address.url}: {reason}") from error
        return _series_of(self._body_of(response))

    def _headers(self) -> dict[str, str]:
        headers = dict(self._address.headers)
        try:
            if self._address.bearer_token_file is not None:
                headers["Authorization"] = f"Bearer {self._address.bearer_token_file.read_text().strip()}"
            elif self._address.username is not None:
                file = self._address.password_file
                password = file.read_text().strip() if file is not None else ""
                auth = httpx.BasicAuth(self._address.username, password)
                request = next(auth.auth_flow(httpx.Request("GET", "http://unused")))
                headers["Authorization"] = request.headers["Authorization"]
        except (OSError, UnicodeError) as error:
            raise Rejected(f"cannot read the credentials for {self._address.url}: {error}") from error
        return headers

    def _body_of(self, response: httpx.Response) -> Mapping[str, Any]:
        url = self._address.url
        if response.status_code in (429, 500, 502, 503, 504):
            raise Overloaded(f"{url} answered {response.status_code}: {_first_line(response)}")
        if response.status_code in (401, 403):
            raise Rejected(f"{url} answered {response.status_code}: check the credentials for Prometheus")
        try:
            body = response.json()
        except ValueError as error:
            message = f"{url} answered {response.status_code}, but not as a Prometheus: {_first_line(response)!r}"
            raise (Unusable if response.is_success else Rejected)(message) from error
        if not isinstance(body, dict):
            raise Unusable(f"{url} answered JSON, but not as a Prometheus")
        if not response.is_success or body.get("status") != "success":
            # 422 is how both Prometheus (execution) and Thanos (a store is missing) say: not this time.
            kind = Overloaded if response.status_code == 422 else Rejected
            raise kind(f"{url} refused the query: {body.get('error', response.status_code)}")
        if warnings := body.get("warnings"):
            raise Unusable(f"{url} answered in part: {warnings[0]}")
        return body


def _series_of(body: Mapping[str, Any]) -> Sequence[Series]:
    try:
        found = []
        for entry in body["data"]["result"]:
            points = entry["values"] if "values" in entry else [entry["value"]]
            times = [float(time) for time, _ in points]
            found.append(Series(labels=entry["metric"], times=times, values=[float(value) for _, value in points]))
        return found
    except (KeyError, TypeError, ValueError) as error:
        excerpt = json.dumps(body)[:120]
        raise Unusable(f"the answer does not follow the Prometheus API: {excerpt}") from error


def _first_line(response: httpx.Response) -> str:
    return response.text.strip().splitlines()[0][:200] if response.text.strip() else "(empty)"


def refuse_unusable_url(url: str) -> None:
    """Raise Rejected for what can never be fetched: no http or https, no host, an impossible port."""
    try:
        parts = urlsplit(url)
        # The client would find a port above 65535 only when it connects, with an error of no kind that it documents.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise Rejected(f"{url} is not a URL: {error}") from error
    if not usable:
        raise Rejected(f"{url} is not a URL such as http://localhost:9090")


async def fetch_page(url: str, *, timeout: timedelta, client: httpx.AsyncClient) -> str:
    """Fetch one page of metrics. Raises SourceError. Reads at most 32 MiB: an endless stream must not fill memory."""
    limit = 32 * 1024 * 1024
    refuse_unusable_url(url)
    try:
        async with (
            asyncio.timeout(timeout.total_seconds()),
            client.stream("GET", url, follow_redirects=True) as response,
        ):
            if not response.is_success:
                raise Rejected(f"{url} answered {response.status_code}; is this the engine's /metrics?")
            page = bytearray()
            async for chunk in response.aiter_bytes():
                page += chunk
                if len(page) > limit:
                    raise Unusable(f"{url} sends more than {limit // 2**20} MiB; is this the engine's /metrics?")
            return page.decode(errors="replace")
    except TimeoutError as error:
        raise Unreachable(f"{url} did not answer within {timeout.total_seconds():.0f} s") from error
    except httpx.InvalidURL as error:
        raise Rejected(f"{url} is not a URL: {error}") from error
    except (httpx.TransportError, httpx.TooManyRedirects, httpx.DecodingError) as error:
        raise Unreachable(f"cannot reach {url}: {str(error) or type(error).__name__}") from error
