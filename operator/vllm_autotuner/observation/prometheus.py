"""Clients for the Prometheus HTTP API (also Thanos, Mimir) and for metrics pages.

A question that is refused at once is asked twice more: a look is a dozen of them, and one in ten that fails would make
nearly every look a failure. Beyond that the next tick is the retry. Partial answers are errors, because half a fleet
looks like an idle fleet. Only this, `access` and `scrape` import httpx.
Must not: decide, turn an empty answer into a number, or show a credential.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import httpx

from vllm_autotuner.budgets import ANSWER_BYTES, PAGE_BYTES
from vllm_autotuner.observation.access import (
    OPEN,
    Access,
    PrometheusAddress,
    TrustedConnection,
    advised,
    scrubbed,
    shown_url,
)
from vllm_autotuner.observation.answer_reader import Allowance, AnswerReader
from vllm_autotuner.observation.errors import (
    Denied,
    NotAccepted,
    Overloaded,
    Rejected,
    SourceError,
    TimedOut,
    TooLarge,
    Unreachable,
    Unusable,
)
from vllm_autotuner.observation.questions import Question, census, promql
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.series_memory import SeriesMemory

__all__ = ["PageReader", "PrometheusAddress", "PrometheusSource", "refuse_unusable_url"]

NO_ANSWER: Final = (httpx.TransportError, httpx.TooManyRedirects, httpx.DecodingError, ssl.SSLError)
"""What a request that is not answered raises. The last where a TLS 1.3 server refuses a client's certificate: its alert
comes after the handshake, with the first read, and httpx lets it through as it is."""
FAILED: Final = frozenset({500, 502, 503, 504})
"""HTTP statuses of a server that may answer the next time. Who is told to slow down (429) does not ask at once."""
CONNECTIONS: Final = 16
"""Requests at a time, as many as the second round of a look has questions: one that waits for another takes two answers
of a slow server. Prometheus executes 20 at a time (--query.max-concurrency). Our choice."""
TRIES: Final = 3
"""How often a question is asked that is refused at once. Our choice: a look is 13 questions, and where a third of them
fails, three tries lose two looks of five, and two tries four of five."""
AT_ONCE: Final = 2.0
"""Seconds within which a question is refused that is asked again: a server that gave up on it after a while would
be kept busy with it again. Our choice."""
PAUSE: Final = 0.2
"""Seconds before a question is asked again. Our choice."""
READ_AT_ONCE: Final = 256 * 1024
"""Bytes of an answer that are parsed on the event loop at most: 5 ms. What is larger is read in a thread."""
OWN_HEADERS: Final = frozenset(
    {"host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "content-type"}
)
"""Headers that the HTTP library sets itself, in lower case: nothing in them is the user's."""
ANNOTATION: Final = "PromQL "
"""How Prometheus begins a warning about single series, such as one that mixes native histograms and numbers."""
MOST_SHOWN: Final = 300
"""Characters of a server's own words that are shown."""


class PrometheusSource:
    """Answers questions by instant queries."""

    def __init__(self, address: PrometheusAddress, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Raises Rejected for a URL, a CA file or a client certificate that can never work."""
        self._address = address
        self._shown = shown_url(address.url)
        refuse_unusable_url(address.url)
        self._trust = TrustedConnection(address) if transport is None else None
        try:
            self._client = httpx.AsyncClient(
                base_url=address.url.rstrip("/") + "/",
                timeout=address.timeout.total_seconds(),
                limits=httpx.Limits(max_connections=CONNECTIONS),
                verify=self._trust.context if self._trust is not None else True,
                transport=transport,
                follow_redirects=True,
                event_hooks={"response": [_refuse_to_carry_credentials_away]},
            )
        except httpx.InvalidURL as error:
            raise Rejected(f"{self._shown} is not a URL: {error}") from error

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def ask(
        self,
        question: Question,
        *,
        at: float,
        namespaces: Sequence[str] = (),
        allowance: Allowance | None = None,
        memory: SeriesMemory | None = None,
    ) -> Sequence[Series]:
        """See MetricsSource.ask. `namespaces`: of which alone is asked, or all; `memory`: takes what is read."""
        text = promql(question, namespaces=namespaces, match=self._address.match)
        return await self.query(text, at=at, allowance=allowance, memory=memory)

    async def count(self, namespaces: Sequence[str], *, at: float) -> Sequence[Series]:
        """How many series each of these namespaces has. Raises SourceError."""
        return await self.query(census(namespaces, match=self._address.match), at=at)

    async def query(
        self, expression: str, *, at: float, allowance: Allowance | None = None, memory: SeriesMemory | None = None
    ) -> Sequence[Series]:
        """Run one instant query at `at` (Unix seconds). Raises SourceError. `allowance`: of the look it belongs to."""
        allowance = allowance or Allowance()
        if self._trust is not None:
            self._trust.renew()
        headers = self._address.request_headers()
        limit = self._address.timeout.total_seconds()
        reader = AnswerReader(allowance, memory=memory)
        form = {"query": expression, "time": f"{at:.3f}", "timeout": f"{limit:.0f}s", "partial_response": "false"}
        try:
            # httpx times single socket operations; a server that trickles would hold the tick without this deadline.
            async with asyncio.timeout(limit + 1), self._answer(form, headers=headers) as response:
                text, series = await _read_series(response, reader, place=self._shown)
                self._refuse_unusable(response, text=text)
                return series
        except (TimeoutError, httpx.TimeoutException) as error:
            raise TimedOut(f"{self._shown} did not answer within {limit:.0f} s", large=allowance.largest()) from error
        except UnicodeError as error:
            raise Rejected(f"the headers for {self._shown} contain characters that HTTP does not allow") from error
        except NO_ANSWER as error:
            reason = scrubbed(str(error) or type(error).__name__, headers=headers)
            raise Unreachable(f"cannot reach {self._shown}: {advised(reason)}") from error
        except TimedOut:
            raise
        except SourceError as error:
            # An endless answer has one cause; a server that gives up may have others.
            least = 0 if isinstance(error, TooLarge) else None
            large = allowance.largest(least=least) if isinstance(error, TooLarge | Overloaded) else frozenset[str]()
            # A server may repeat what it was sent.
            raise type(error)(scrubbed(str(error), headers=headers), large=large) from error

    @asynccontextmanager
    async def _answer(self, form: Mapping[str, str], *, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """The beginning of an answer. Raises one of `NO_ANSWER`."""
        for _ in range(TRIES - 1):
            if (response := await self._try(form, headers=headers)) is not None:
                break
            await asyncio.sleep(PAUSE)
        else:
            response = await self._client.send(self._request(form, headers=headers), stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def _try(self, form: Mapping[str, str], *, headers: Mapping[str, str]) -> httpx.Response | None:
        """None where the question is refused at once."""
        began = time.monotonic()
        try:
            response = await self._client.send(self._request(form, headers=headers), stream=True)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return None
        if response.status_code not in FAILED or time.monotonic() - began > AT_ONCE:
            return response
        await response.aclose()
        return None

    def _request(self, form: Mapping[str, str], *, headers: Mapping[str, str]) -> httpx.Request:
        return self._client.build_request("POST", "api/v1/query", data=form, headers=headers)

    def _refuse_unusable(self, response: httpx.Response, *, text: str) -> None:
        """Raise SourceError for an answer that is none, or not whole. `text`: without its series."""
        url = self._shown
        if response.status_code in FAILED | {429}:
            raise Overloaded(f"{url} answered {response.status_code}: {_first_line(text)}")
        if response.status_code in (401, 403):
            raise Rejected(f"{url} answered {response.status_code}: check the credentials for Prometheus")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            message = f"{url} answered {response.status_code}, but is not a Prometheus API: {_first_line(text)!r}"
            raise (Unusable if response.is_success else Rejected)(message) from error
        if not isinstance(body, dict):
            raise Unusable(f"{url} answered JSON, but is not a Prometheus API")
        if not response.is_success or body.get("status") != "success":
            # 422 is temporary in Prometheus (query execution) and in Thanos (a store is missing).
            kind = Overloaded if response.status_code == 422 else Rejected
            raise kind(f"{url} refused the query: {str(body.get('error', response.status_code))[:MOST_SHOWN]}")
        if partial := _partial(body.get("warnings")):
            raise Unusable(f"{url} returned a partial answer: {partial[:MOST_SHOWN]}")
        data = body.get("data")
        if not isinstance(data, dict) or not isinstance(data.get("result"), list):
            raise Unusable(f"the answer does not follow the Prometheus API: {text[:120]}")


async def _read_series(response: httpx.Response, reader: AnswerReader, *, place: str) -> tuple[str, Sequence[Series]]:
    """Read an answer in parts, large ones in a thread: the event loop must not wait for somebody's many series."""
    read, part = 0, bytearray()
    async for chunk in response.aiter_bytes():
        part += chunk
        read += len(chunk)
        if read > ANSWER_BYTES.limit:
            ANSWER_BYTES.exceeded()
            raise TooLarge(f"{place} sent more than {ANSWER_BYTES.limit // 2**20} MiB, too much for metrics")
        if len(part) >= READ_AT_ONCE:
            await asyncio.to_thread(reader.feed, bytes(part))
            part.clear()
    reader.feed(bytes(part))
    return reader.finish()


async def _read(response: httpx.Response, *, place: str) -> str:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > PAGE_BYTES.limit:
            PAGE_BYTES.exceeded()
            raise Unusable(f"{place} sent more than {PAGE_BYTES.limit // 2**20} MiB, too much for metrics")
    return body.decode(errors="replace")


def _partial(warnings: object) -> str:
    """Return what is missing from an answer; empty when all of it is there.

    An annotation of PromQL is about single series, which are left out of the answer: their engine misses them. Any
    other warning is about the store (Thanos, remote read), and then the whole fleet may be missing.
    """
    texts = warnings if isinstance(warnings, list) else [] if warnings is None else [warnings]
    return next((str(text) for text in texts if not str(text).startswith(ANNOTATION)), "")


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "(empty)"


async def _refuse_to_carry_credentials_away(response: httpx.Response) -> None:
    """Raise Rejected for a redirect to another host of a request with headers of the user.

    The client takes only `Authorization` away; a tenant or an API key in a header of another name would go along.
    """
    if not response.has_redirect_location or not set(response.request.headers) - OWN_HEADERS:
        return
    try:
        target = response.url.join(response.headers["location"])
    except httpx.InvalidURL as error:
        raise Unusable(f"{shown_url(str(response.url))} redirects to what is no URL") from error
    if target.host != response.url.host:
        place, other = shown_url(str(response.url)), shown_url(str(target))
        raise Rejected(f"{place} redirects to {other}, which would get your headers: name that address if you trust it")


def refuse_unusable_url(url: str) -> None:
    """Raise Rejected for what can never be fetched: no http or https, no host, an impossible port."""
    try:
        parts = urlsplit(url)
        # The client would find a port above 65535 only when it connects, with an error of no kind that it documents.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise Rejected(f"{shown_url(url)} is not a URL: {error}") from error
    if not usable:
        raise Rejected(f"{shown_url(url)} is not a URL such as http://localhost:9090")


class PageReader:
    """Fetches pages of metrics, with one client: a new one reads the CA bundle, which takes longer than a scrape."""

    def __init__(
        self, *, timeout: timedelta, access: Access = OPEN, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Raises Rejected for a CA file or a client certificate that can never work."""
        self._access, self._timeout = access, timeout
        self._trust = TrustedConnection(access) if transport is None else None
        self._client = httpx.AsyncClient(
            transport=transport,
            timeout=timeout.total_seconds(),
            verify=self._trust.context if self._trust is not None else True,
            follow_redirects=True,
            event_hooks={"response": [_refuse_to_carry_credentials_away]},
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def fetch(self, url: str) -> str:
        """Fetch one page. Raises SourceError. Reads at most `PAGE_BYTES`."""
        refuse_unusable_url(url)
        if self._trust is not None:
            self._trust.renew()
        headers, place = self._access.request_headers(), shown_url(url)
        try:
            async with (
                asyncio.timeout(self._timeout.total_seconds()),
                self._client.stream("GET", url, headers=headers) as response,
            ):
                if response.status_code == 429 or response.status_code >= 500:
                    raise Overloaded(f"{place} answered {response.status_code}; is this the engine's /metrics?")
                if response.status_code in (401, 403):
                    kind = NotAccepted if response.status_code == 401 else Denied
                    raise kind(f"{place} answered {response.status_code}: check the credentials")
                if not response.is_success:
                    raise Rejected(f"{place} answered {response.status_code}; is this the engine's /metrics?")
                return await _read(response, place=place)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise TimedOut(f"{place} did not answer within {self._timeout.total_seconds():g} s") from error
        except UnicodeError as error:
            raise Rejected(f"the headers for {place} contain characters that HTTP does not allow") from error
        except httpx.InvalidURL as error:
            raise Rejected(f"{place} is not a URL: {error}") from error
        except NO_ANSWER as error:
            reason = scrubbed(str(error) or type(error).__name__, headers=headers)
            raise Unreachable(f"cannot reach {place}: {advised(reason)}") from error
