"""Sampling engines' own /metrics pages into a recording, for places that have no Prometheus.

Each engine is sampled on its own pace, so that one that hangs does not silence the others; a failed scrape leaves a
gap, and the freshness rules see it. Time comes from the caller: a wall clock that jumps must not bend a rate.
Must not: judge what was read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import httpx

from vllm_autotuner.observation.errors import SourceError, Unreadable
from vllm_autotuner.observation.exposition import Sample, read_samples
from vllm_autotuner.observation.prometheus import fetch_page, refuse_unusable_url
from vllm_autotuner.observation.recording import Recording

__all__ = ["Clock", "ScrapeTarget", "Scraped", "sample_engines", "scrape_targets"]

SCRAPE_TIMEOUT: Final = timedelta(seconds=5)
"""A page that takes longer is a failed scrape. vLLM answers in milliseconds unless its event loop is stuck."""
ENGINE_PREFIX: Final = "vllm:"
"""Only these are kept: python_* and http_* would double the memory and answer no question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """One engine. `pod` tells several apart (host:port); empty for a single one."""

    url: str
    pod: str = ""


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


async def sample_engines(
    targets: Sequence[ScrapeTarget],
    *,
    duration: timedelta,
    interval: timedelta,
    clock: Clock,
    transport: httpx.AsyncBaseTransport | None = None,
    scraped: Callable[[ScrapeTarget], None] = lambda target: None,
) -> Scraped:
    """Scrape every target each `interval` for `duration`, both ends included; `scraped` is called after each attempt.

    Raises the first target's SourceError when no target answers the first scrape: then waiting would not help.
    """
    # One client for all scrapes: a new one reads the CA bundle each time, which takes longer than a scrape.
    async with httpx.AsyncClient(transport=transport, timeout=SCRAPE_TIMEOUT.total_seconds()) as client:
        sampling = _Sampling(clock, client=client, scraped=scraped)
        first = await asyncio.gather(*(sampling.scrape(target) for target in targets))
        errors = [error for error in first if error is not None]
        if len(errors) == len(targets):
            raise errors[0]
        step, until = interval.total_seconds(), duration.total_seconds()
        await asyncio.gather(*(sampling.repeat(target, step=step, until=until) for target in targets))
        return Scraped(recording=sampling.recording, failures=sampling.failures)


class _Sampling:
    def __init__(self, clock: Clock, *, client: httpx.AsyncClient, scraped: Callable[[ScrapeTarget], None]) -> None:
        self.recording = Recording()
        self.failures: dict[str, str] = {}
        self._clock = clock
        self._zero = clock.monotonic()
        self._client = client
        self._scraped = scraped

    async def repeat(self, target: ScrapeTarget, *, step: float, until: float) -> None:
        due = 0
        while True:
            # Scrapes that a slow answer has run past are left out, not caught up with: a burst is not a sample. The
            # count goes on in any case, because a sleep may end a moment early and must not be scraped twice.
            due = max(due, int(self._elapsed() // step)) + 1
            if due * step > until + step / 1000:
                return
            await self._clock.sleep(max(0.0, due * step - self._elapsed()))
            await self.scrape(target)

    async def scrape(self, target: ScrapeTarget) -> SourceError | None:
        began = self._elapsed()
        try:
            page = await fetch_page(target.url, timeout=SCRAPE_TIMEOUT, client=self._client)
            samples = _samples_of(page, target=target)
        except SourceError as error:
            self.failures[target.url] = str(error)
            return error
        finally:
            self._scraped(target)
        for sample in samples:
            # The time of the request, as Prometheus stamps it.
            self.recording.add(sample, time=self._clock.started + began)
        return None

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._zero


def _samples_of(page: str, *, target: ScrapeTarget) -> list[Sample]:
    try:
        found = [sample for sample in read_samples(page.splitlines()) if sample.name.startswith(ENGINE_PREFIX)]
    except Unreadable as error:
        raise Unreadable(f"{target.url} does not answer with metrics ({error})") from error
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
