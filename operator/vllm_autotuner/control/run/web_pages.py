"""The read-only web page, on the port of probes and metrics, off by default: the fleet, and one service.

What it shows is what `vllm-autotuner report` shows, from the registry that the watches keep. It has no login: whoever
reaches the port reads the status of every service, and nothing of a spec that may hold a secret.
Must not: write, ask the API server or Prometheus, run a script, or trust a text. A page is of bounded size, however
many services there are and whatever a tenant wrote into theirs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from typing import Final
from urllib.parse import quote, urlencode

from aiohttp import web

from vllm_autotuner.control.read.registry import Key
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.overview.fleet_table import fleet_table
from vllm_autotuner.overview.gpu_hours import RECORDED, Prices, Savings, savings_of
from vllm_autotuner.overview.html_page import STYLE_HASH, document, safe
from vllm_autotuner.overview.number_format import moment
from vllm_autotuner.overview.service_row import ServiceRow, row_of, worst_first
from vllm_autotuner.overview.service_section import service_section

__all__ = ["HEADERS", "PAGE_SIZE", "WebPages"]

logger = logging.getLogger(__name__)

PAGE_SIZE: Final = 100
"""Services on a page of the fleet."""
KEPT_SECONDS: Final = 5.0
"""How long the ordered rows are kept: 10,000 services take a tenth of a second, and a reader may hold down F5."""
LONGEST_QUERY: Final = 100
"""Characters of a search."""
POLICY: Final = (
    f"default-src 'none'; style-src '{STYLE_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(slots=True, kw_only=True)
class WebPages:
    """The pages over one registry."""

    services: Callable[[], Mapping[Key, ServiceEntry]]
    prices: Prices
    wall: Callable[[], datetime]
    monotonic: Callable[[], float]
    _rows: Sequence[ServiceRow] = field(default=(), init=False)
    _read_at: float | None = field(default=None, init=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def routes(self) -> Iterable[web.RouteDef]:
        """What the server must know."""
        return (web.get("/", self.fleet), web.get("/services/{namespace}/{name}", self.service))

    async def fleet(self, request: web.Request) -> web.Response:
        """Answer with one page of the fleet, the worst first; `q` searches in namespace and name."""
        query = request.query.get("q", "").strip()[:LONGEST_QUERY]
        number = request.query.get("page", "1")
        rows = [row for row in await self._all_rows() if query.lower() in f"{row.namespace}/{row.name}".lower()]
        last = max(1, -(-len(rows) // PAGE_SIZE))
        page = min(int(number), last) if number.isascii() and number.isdecimal() and len(number) < 9 else 1
        page = max(1, page)
        shown = rows[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
        entries = self.services()
        table = fleet_table(
            [(row, self._savings(entries.get(Key(row.namespace, row.name)))) for row in shown],
            link=lambda row: f"services/{quote(row.namespace, safe='')}/{quote(row.name, safe='')}",
            caption=f"{len(rows)} services, the worst first; page {page} of {last}",
        )
        body = [
            f"<header><h1>vLLM services</h1>{self._as_of()}</header><main>",
            _search(query),
            table if shown else f"<p>{'No service matches.' if query else 'There is no VLLMService yet.'}</p>",
            _turning(page, last, query=query),
            "</main>",
        ]
        return _answer(document("vLLM services", body))

    async def service(self, request: web.Request) -> web.Response:
        """Answer with one service: its diagnosis, decision, savings and history."""
        key = Key(request.match_info["namespace"], request.match_info["name"])
        back = '<nav aria-label="Pages"><a href="../../">All services</a></nav>'
        entry = self.services().get(key)
        if entry is None:
            missing = (
                f"<main><h1>Not found</h1><p>There is no VLLMService {safe('/'.join(key), longest=200)}.</p></main>"
            )
            return _answer(document("Not found", [back, missing]), status=404)
        now = self.wall()
        savings = savings_of(entry.service, since=RECORDED, until=now, prices=self.prices)
        section = service_section(entry.service, savings=savings, now=now, identity="service")
        body = [f"<header><h1>vLLM service</h1>{self._as_of()}</header>", back, f"<main>{section}</main>"]
        return _answer(document("/".join(key), body))

    async def _all_rows(self) -> Sequence[ServiceRow]:
        async with self._reading:
            now = self.monotonic()
            if self._read_at is None or now - self._read_at >= KEPT_SECONDS:
                entries = self.services()
                # In a thread: probes and the fleet loop share this event loop.
                self._rows = await asyncio.to_thread(_ordered, entries.values())
                self._read_at = self.monotonic()
            return self._rows

    def _savings(self, entry: ServiceEntry | None) -> Savings | None:
        if entry is None:
            return None
        return savings_of(entry.service, since=RECORDED, until=self.wall(), prices=self.prices)

    def _as_of(self) -> str:
        return f"<p><small>As of {safe(moment(self.wall().isoformat()))}. Read-only.</small></p>"


def _ordered(entries: Iterable[ServiceEntry]) -> Sequence[ServiceRow]:
    rows = []
    for entry in entries:
        try:
            rows.append(row_of(entry.body))
        except Exception:
            # An object that trips the reader must not take the page from all others; its own page says more.
            logger.exception("failed to show service", extra={"service": f"{entry.namespace}/{entry.name}"})
    return worst_first(rows)


def _search(query: str) -> str:
    return (
        '<form method="get" role="search"><label for="q">Search namespace or name</label>'
        f'<input id="q" name="q" type="search" value="{safe(query, longest=LONGEST_QUERY)}" '
        f'maxlength="{LONGEST_QUERY}"><button>Search</button></form>'
    )


def _turning(page: int, last: int, *, query: str) -> str:
    """Links to the pages before and after, where there are any."""
    if last == 1:
        return ""

    def link(number: int, text: str) -> str:
        address = escape("?" + urlencode({"page": number} | ({"q": query} if query else {})), quote=True)
        return f'<a href="{address}">{text}</a>'

    before = [link(1, "First"), link(page - 1, "Previous")] if page > 1 else []
    after = [link(page + 1, "Next"), link(last, "Last")] if page < last else []
    return f'<nav aria-label="Pages">{"".join((*before, f"<span>Page {page} of {last}</span>", *after))}</nav>'


def _answer(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=HEADERS)
