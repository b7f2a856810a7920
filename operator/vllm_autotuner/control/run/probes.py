"""The HTTP server for the kubelet and Prometheus: /healthz, /readyz, /metrics.

Used instead of kopf's liveness endpoint, which only proves that the event loop runs, and retries for a minute inside
the request when a probe fails.
Must not: do work in a request. Each answer reports values that exist already.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from vllm_autotuner.budgets import LOOP_LAG_SECONDS
from vllm_autotuner.control.run.liveness import Heartbeat, LoopLag
from vllm_autotuner.control.run.operator_metrics import OperatorMetrics

logger = logging.getLogger(__name__)

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The state that the three endpoints report."""

    heartbeat: Heartbeat
    heartbeat_limit: float
    """Seconds without a beat after which the process should be restarted."""

    lag: LoopLag
    ready: Callable[[], bool]
    """Whether the whole fleet is known: followers are ready too."""

    metrics: OperatorMetrics
    is_leader: Callable[[], bool]

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer 200 while the fleet loop advances. Not leading or an unreachable Prometheus are no reason to die."""
        age = self.heartbeat.age()
        alive = age <= self.heartbeat_limit
        text = f"fleet loop: last heartbeat {age:.1f} s ago (limit {self.heartbeat_limit:.0f} s)\n"
        return web.Response(text=text, status=200 if alive else 503)

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 once the fleet is known and watched, while the event loop keeps up."""
        lag = self.lag.longest()
        if not self.ready():
            text = "not ready: the initial list is not complete, or the operator is stopping\n"
        elif lag > LOOP_LAG_SECONDS.limit:
            text = f"not ready: the event loop was blocked for {lag:.1f} s in the last minute\n"
        else:
            return web.Response(text=f"ready; event loop lag {lag:.2f} s\n")
        return web.Response(text=text, status=503)

    async def page(self, request: web.Request) -> web.Response:
        """Answer with the operator's metrics."""
        # Read at the scrape: the lease expires by the clock, and no code sets the gauge then.
        self.metrics.leader.set(1 if self.is_leader() else 0)
        self.metrics.loop_lag.set(self.lag.longest())
        # Beside the event loop: the page of 10,000 services takes half a second to write.
        page = await asyncio.to_thread(self.metrics.page)
        return web.Response(body=page, headers={"Content-Type": _TEXT})


async def serve(
    probes: Probes, *, listen_address: str, stop: asyncio.Event, pages: Iterable[web.RouteDef] = ()
) -> None:
    """Serve until `stop`. Raises OSError when the address cannot be bound, ValueError when it is none.

    `pages`: further routes, such as those of the web page.
    """
    host, port = split_address(listen_address)
    application = web.Application()
    application.add_routes(
        [
            web.get("/healthz", probes.healthz),
            web.get("/readyz", probes.readyz),
            web.get("/metrics", probes.page),
            *pages,
        ]
    )
    # No access log: a kubelet asks every few seconds. A short timeout: a scrape must not hold up the shutdown.
    runner = web.AppRunner(application, handle_signals=False, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host or None, port)
        await site.start()
        bound = [f"{address[0]}:{address[1]}" for address in runner.addresses]
        logger.info("serving probes and metrics", extra={"addresses": bound})
        await stop.wait()
    finally:
        await runner.cleanup()


def split_address(text: str) -> tuple[str, int]:
    """Split `host:port`; the host may be empty (all addresses) or an IPv6 address in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not a valid address: use host:port, e.g. 0.0.0.0:8080 or [::1]:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)
