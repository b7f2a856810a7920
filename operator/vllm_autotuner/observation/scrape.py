"""Scrapes engines' /metrics pages into a recording, for setups without a Prometheus.

Each engine is scraped at its own pace, so that one that hangs does not delay the others. A failed scrape leaves a gap,
which the freshness rules detect. Time comes from the caller: a wall clock that jumps must not distort a rate.
Must not: judge what was read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import httpx

from vllm_autotuner.engine.foreign_servers import ForeignServer, foreign_server
from vllm_autotuner.engine.metric_names import NAMES, PROCESS_START, Meaning
from vllm_autotuner.observation.access import OPEN, Access, shown_url
from vllm_autotuner.observation.errors import Overloaded, SourceError, TimedOut, Unreadable
from vllm_autotuner.observation.metrics_text import Sample, read_samples
from vllm_autotuner.observation.prometheus import PageReader, refuse_unusable_url
from vllm_autotuner.observation.recording import Recording

__all__ = [
    "Clock",
    "Received",
    "Sampler",
    "ScrapeTarget",
    "Scraped",
    "may_pass",
    "sample_engines",
    "sampled_into",
    "scrape_targets",
]

SCRAPE_TIMEOUT: Final = timedelta(seconds=5)
"""A page that takes longer is a failed scrape. vLLM answers in milliseconds unless its event loop is stuck."""
ENGINE_PREFIX: Final = "vllm:"
"""Of the rest only the process's start is kept: python_* and http_* would double the memory and answer no question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """One engine. `pod` tells several apart (host:port); empty for a single one."""

    url: str
    pod: str = ""

    @property
    def place(self) -> str:
        """The URL as it may be shown."""
        return shown_url(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time as sampling needs it: when it began, and what passed since."""

    started: float
    """Unix seconds."""
    monotonic: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """What came of sampling. `failures`: URL -> the last error of an engine that failed at least once."""

    recording: Recording
    failures: dict[str, str]
    foreign: Mapping[str, ForeignServer]
    """URL -> what kind of other server its page is of."""


Received: TypeAlias = Callable[[ScrapeTarget, str, float], None]
"""Takes a page and the time of its request (Unix seconds). Raises Unreadable for a page that is none."""


def scrape_targets(urls: Sequence[str]) -> tuple[ScrapeTarget, ...]:
    """Read what people type: a base URL, the page itself, or host:port. Raises Rejected for what is no URL."""
    pages = list(dict.fromkeys(_page_of(url) for url in urls))
    if len(pages) == 1:
        return (ScrapeTarget(url=pages[0]),)
    pods = [urlsplit(page).netloc.rpartition("@")[2] for page in pages]
    # Two engines behind one gateway differ only in their path.
    unique = len(set(pods)) == len(pods)
    return tuple(
        ScrapeTarget(url=page, pod=pod if unique else pod + urlsplit(page).path)
        for page, pod in zip(pages, pods, strict=True)
    )


def _page_of(url: str) -> str:
    full = url if "://" in url else f"http://{url}"
    refuse_unusable_url(full)
    parts = urlsplit(full)
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith("/metrics") else f"{path}/metrics", fragment="").geturl()


@dataclass(slots=True)
class Failures:
    """Scrapes of one target that failed."""

    count: int = 0
    last: str = ""


@dataclass(slots=True, kw_only=True)
class Sampler:
    """Scrapes targets, each on its own pace, and hands every page to `receive`."""

    clock: Clock
    reader: PageReader
    receive: Received
    scraped: Callable[[ScrapeTarget], None] = lambda target: None
    """Called after each attempt."""
    failures: dict[str, Failures] = field(default_factory=dict)
    """By URL as it may be shown."""
    zero: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.zero = self.clock.monotonic()

    async def first(self, targets: Sequence[ScrapeTarget]) -> Sequence[SourceError]:
        """Scrape every target once and return the errors."""
        found = await asyncio.gather(*(self.scrape(target) for target in targets))
        return [error for error in found if error is not None]

    async def repeat(self, targets: Sequence[ScrapeTarget], *, step: float, until: float) -> None:
        """Scrape every target each `step` seconds, until `until` seconds after the start; infinity never ends."""
        await asyncio.gather(*(self._repeat(target, step=step, until=until) for target in targets))

    async def _repeat(self, target: ScrapeTarget, *, step: float, until: float) -> None:
        due = 0
        while True:
            # Scrapes that a slow answer has run past are left out, not caught up with: a burst is not a sample. The
            # count goes on in any case, because a sleep may end a moment early and must not be scraped twice.
            due = max(due, int(self.elapsed // step)) + 1
            if due * step > until + step / 1000:
                return
            await self.clock.sleep(max(0.0, due * step - self.elapsed))
            await self.scrape(target)

    async def scrape(self, target: ScrapeTarget) -> SourceError | None:
        """Scrape once; a failure is counted and returned."""
        began = self.elapsed
        try:
            page = await self.reader.fetch(target.url)
            # The time of the request, as Prometheus stamps it.
            self.receive(target, page, self.clock.started + began)
        except SourceError as error:
            failures = self.failures.setdefault(target.place, Failures())
            failures.count, failures.last = failures.count + 1, str(error)
            return error
        finally:
            self.scraped(target)
        return None

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock.monotonic() - self.zero


async def sample_engines(
    targets: Sequence[ScrapeTarget],
    *,
    duration: timedelta,
    interval: timedelta,
    clock: Clock,
    access: Access = OPEN,
    transport: httpx.AsyncBaseTransport | None = None,
    scraped: Callable[[ScrapeTarget], None] = lambda target: None,
) -> Scraped:
    """Scrape every target each `interval` for `duration`, both ends included, and at least twice.

    `scraped` is called after each attempt.

    Raises the first target's SourceError when no target ever answers; at once, when waiting would not help.
    """
    recording, foreign = Recording(), dict[str, ForeignServer]()
    reader = PageReader(timeout=SCRAPE_TIMEOUT, access=access, transport=transport)
    sampler = Sampler(clock=clock, reader=reader, receive=sampled_into(recording, foreign), scraped=scraped)
    try:
        errors = await sampler.first(targets)
        if len(errors) == len(targets) and not any(map(may_pass, errors)):
            raise errors[0]
        step = interval.total_seconds()
        # A first answer that took all of the time is followed by one more: one scrape shows no rates, and a page with
        # odd counters would pass for a good one.
        await sampler.repeat(targets, step=step, until=max(duration.total_seconds(), sampler.elapsed + step))
    finally:
        await reader.close()
    if not recording.names and len(errors) == len(targets) and not foreign:
        raise errors[0]
    failures = {url: found.last for url, found in sampler.failures.items()}
    return Scraped(recording=recording, failures=failures, foreign=foreign)


def may_pass(error: SourceError) -> bool:
    """Whether the next scrape may well succeed: the server is there, and was too slow or too busy for this one."""
    return isinstance(error, Overloaded | TimedOut)


def sampled_into(recording: Recording, foreign: dict[str, ForeignServer] | None = None) -> Received:
    """Return what adds the engine's own samples of each page to `recording`, and other servers to `foreign`, by URL."""

    def receive(target: ScrapeTarget, page: str, time: float) -> None:
        samples = _samples_of(page, target=target)
        for sample in samples:
            recording.add(sample, time=time)
        if foreign is not None and target.place not in foreign and (found := _foreign(page, samples)) is not None:
            foreign[target.place] = found

    return receive


def _foreign(page: str, samples: Sequence[Sample]) -> ForeignServer | None:
    """What else the page is of; an engine's own has the gauge of its running requests and is not looked through."""
    if any(sample.name in NAMES[Meaning.RUNNING].names for sample in samples):
        return None
    return foreign_server(sample.name for sample in read_samples(page.splitlines()))


def _samples_of(page: str, *, target: ScrapeTarget) -> list[Sample]:
    try:
        samples = read_samples(page.splitlines())
        found = [one for one in samples if one.name.startswith(ENGINE_PREFIX) or one.name == PROCESS_START]
    except Unreadable as error:
        raise Unreadable(f"{target.place} does not answer with metrics ({error})") from error
    if not target.pod:
        return found
    pod = (("pod", target.pod),)
    return [
        Sample(
            name=one.name,
            labels=tuple(sorted(pod + tuple(pair for pair in one.labels if pair[0] != "pod"))),
            value=one.value,
            time=one.time,
        )
        for one in found
    ]
