"""Load generator for tests and demonstrations: requests to one or many servers, by rate, by clients, or both.

Separate from the server, because it must work against a real vLLM as well: token ids as prompts, `ignore_eos`.
Must not: judge. It counts answers and passes each one to a callback (`on_answer`).

    async with Load(lambda: ready_urls, Traffic(model="tiny"), rate=5.0) as load:
        ...
        load.rate = 9.0

As a program, such as in a pod: `python -m vllm_autotuner.simulation.load http://chat:8000 --model tiny --clients 8`
"""

import argparse
import asyncio
import json
import math
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp

VOCABULARY: Final = range(10, 2000)
"""Token ids that every tokenizer has; random ones never hit a prefix cache."""
RETRY_SECONDS: Final = 0.2
"""How long a closed-loop client waits when no server is ready or its request failed."""
TALLY_SECONDS: Final = 2.0
"""Between two lines of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What each request is like."""

    model: str
    prompt_tokens: tuple[int, int] = (50, 200)
    """Drawn evenly from this range, ends included."""
    output_tokens: tuple[int, int] = (50, 150)
    """The same; `ignore_eos` makes the server produce exactly as many."""
    stream: bool = False
    more: Callable[[random.Random], Mapping[str, object]] | None = None
    """Further fields of each request, such as a grammar."""
    timeout: float = 600.0
    """Seconds for one request; then it counts as broken off."""
    connect_timeout: float = 3.0
    """Seconds of these to reach the server. The address of a pod that has just gone swallows packets for a minute: each
    client that went there would be missing for so long (measured: 73 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. `status` is 0 when the connection failed or broke off."""

    url: str
    status: int
    seconds: float
    first_chunk_seconds: float | None
    """From sending to the first event; None without streaming, or when nothing came."""


@dataclass(slots=True)
class Tally:
    """What has happened so far."""

    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    """Answers by HTTP status; 0 counts connections that failed or broke off."""
    shed: int = 0
    """Arrivals not sent, because `max_in_flight` requests were under way."""
    homeless: int = 0
    """Arrivals not sent, because no server was ready."""

    @property
    def succeeded(self) -> int:
        """Answers with status 200."""
        return self.statuses[200]

    @property
    def failed(self) -> int:
        """Connections that failed, and answers other than 200."""
        return self.statuses.total() - self.statuses[200]

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.sent - self.statuses.total()


class Load:
    """Requests from an open loop (`rate`) and a closed loop (`clients`). Entering it as a context starts it."""

    def __init__(
        self,
        endpoints: Callable[[], Sequence[str]],
        traffic: Traffic,
        *,
        rate: float = 0.0,
        clients: int = 0,
        seed: int = 0,
        max_in_flight: int = 1000,
        on_answer: Callable[[Answer], None] | None = None,
        keep_alive: bool = True,
    ) -> None:
        """`endpoints` returns the base URLs that are ready now; requests go round. `max_in_flight` bounds the rate.

        Without `keep_alive` each request has a connection of its own: a Service chooses a pod for each connection.
        """
        self.traffic = traffic
        self.tally = Tally()
        self._endpoints = endpoints
        self._rate = rate
        self._clients = clients
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._max_in_flight = max_in_flight
        self._on_answer = on_answer
        self._keep_alive = keep_alive
        self._turn = -1
        self._active_clients = 0
        self._rate_changed = asyncio.Event()
        self._clients_changed = asyncio.Event()
        self._tasks: set[asyncio.Task[object]] = set()
        self._failure: BaseException | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def rate(self) -> float:
        """Requests per second of the open loop, whatever the servers answer; may be set at any time, 0 pauses."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._rate = rate
        self._rate_changed.set()

    @property
    def clients(self) -> int:
        """Clients of the closed loop, each with one request under way; those too many leave after their answer."""
        return self._clients

    @clients.setter
    def clients(self, clients: int) -> None:
        self._clients = clients
        self._clients_changed.set()

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self.traffic.timeout, sock_connect=self.traffic.connect_timeout)
        connector = aiohttp.TCPConnector(limit=0, force_close=not self._keep_alive)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        self._start(self._arrivals())
        self._start(self._crowd())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        if self._failure is not None:
            raise self._failure

    def _start(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            # Ours, as what servers do is an answer. Told when the context ends, so that no test passes over it.
            self._failure = failure

    async def _arrivals(self) -> None:
        """Send at random (Poisson) times at the rate of the moment."""
        clock = asyncio.get_running_loop().time
        at = clock()
        while True:
            self._rate_changed.clear()
            due = at + self._random.expovariate(self._rate) if self._rate > 0 else math.inf
            if await self._rate_changes_before(due):
                at = clock()
                continue
            # The next interval starts when this arrival was due, not now: a late wake-up must not lower the rate.
            at = due
            self._arrive()

    async def _rate_changes_before(self, due: float) -> bool:
        delay = None if due == math.inf else max(0.0, due - asyncio.get_running_loop().time())
        try:
            await asyncio.wait_for(self._rate_changed.wait(), delay)
        except TimeoutError:
            return False
        return True

    def _arrive(self) -> None:
        body = self._body()
        url = self._next_endpoint()
        if url is None:
            self.tally.homeless += 1
        elif self.tally.in_flight >= self._max_in_flight:
            self.tally.shed += 1
        else:
            self.tally.sent += 1
            self._start(self._send(url, body))

    async def _crowd(self) -> None:
        """Keep as many clients as there shall be."""
        while True:
            self._clients_changed.clear()
            while self._active_clients < self._clients:
                self._active_clients += 1
                self._start(self._client())
            await self._clients_changed.wait()

    async def _client(self) -> None:
        while self._active_clients <= self._clients:
            status = 0
            url = self._next_endpoint()
            if url is None:
                self.tally.homeless += 1
            else:
                self.tally.sent += 1
                status = await self._send(url, self._body())
            if status != 200:
                await asyncio.sleep(RETRY_SECONDS)
        self._active_clients -= 1

    def _next_endpoint(self) -> str | None:
        urls = self._endpoints()
        self._turn += 1
        return urls[self._turn % len(urls)] if urls else None

    def _body(self) -> dict[str, object]:
        prompt_tokens = self._random.randint(*self.traffic.prompt_tokens)
        return {
            "model": self.traffic.model,
            "prompt": self._random.choices(VOCABULARY, k=prompt_tokens),
            "max_tokens": self._random.randint(*self.traffic.output_tokens),
            "ignore_eos": True,
            "stream": self.traffic.stream,
            **(self.traffic.more(self._random) if self.traffic.more is not None else {}),
        }

    async def _send(self, url: str, body: dict[str, object]) -> int:
        """Send one request and count its answer; return the status."""
        if self._session is None:
            raise RuntimeError("the load generator is not started: use it as a context manager")
        clock = asyncio.get_running_loop().time
        began, first, status = clock(), None, 0
        try:
            async with self._session.post(f"{url}/v1/completions", json=body) as response:
                async for _ in response.content.iter_any():
                    first = first or clock()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            status = 0
        finally:
            self.tally.statuses[status] += 1
        if self._on_answer is not None:
            first_chunk = first - began if self.traffic.stream and first is not None else None
            answer = Answer(url=url, status=status, seconds=clock() - began, first_chunk_seconds=first_chunk)
            self._on_answer(answer)
        return status


async def send(urls: Sequence[str], traffic: Traffic, *, clients: int, rate: float) -> None:
    """Send requests until SIGTERM or SIGINT, and print the tally now and then: one JSON object a line."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Load(lambda: urls, traffic, clients=clients, rate=rate, keep_alive=False) as load:
        while not stop.is_set():
            tally = load.tally
            line: dict[str, object] = {"sent": tally.sent, "succeeded": tally.succeeded, "failed": tally.failed}
            if tally.failed:
                line["failures"] = {
                    f"HTTP {status}" if status else "no answer": count
                    for status, count in tally.statuses.items()
                    if status != 200
                }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), TALLY_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="python -m vllm_autotuner.simulation.load", description=__doc__.split("\n")[0]
    )
    parser.add_argument("urls", nargs="+", metavar="URL", help="base URL of a server or a Service; requests go round")
    parser.add_argument("--model", required=True, help="its name in the requests")
    parser.add_argument("--clients", type=int, default=0, help="each with one request under way")
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second beside the clients")
    options = parser.parse_args(arguments)
    if wrong := [url for url in options.urls if not re.fullmatch(r"https?://[^/\s]+\S*", url)]:
        parser.error(f"{wrong[0]!r} is no URL such as http://chat:8000")
    if options.clients < 0 or not 0 <= options.rate < math.inf or (not options.clients and not options.rate):
        parser.error("give --clients, --rate or both, as numbers above 0: without them nothing is sent")
    traffic = Traffic(model=options.model)
    asyncio.run(send(options.urls, traffic, clients=options.clients, rate=options.rate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
