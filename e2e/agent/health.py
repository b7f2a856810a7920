"""A running container's health: the startup probe first, then readiness and liveness side by side.

Apart from `probes` (how to ask) and from `container` (what follows): here is what the answers mean.
Must not: end the container; `watch` returns when it should be restarted.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from e2e.agent.objects import Object
from e2e.agent.probes import Ask, ProbeTiming, verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Unhealthy:
    """The container has to be restarted; it gets `grace` seconds, None for those of the pod."""

    probe: str
    grace: float | None


class Health:
    """The health of one run of a container. Without probes it is started and ready at once."""

    def __init__(
        self, container: Object, *, ask: Ask, report: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        """`ask` does what a probe says, `report` gets the words of each failure, `changed` is called after a change."""
        self.started = False
        self.ready = False
        self._container = container
        self._ask = ask
        self._report = report
        self._changed = changed

    async def watch(self) -> Unhealthy:
        """Probe until the startup or the liveness probe fails for good; for ever when there is neither."""
        if (probe := self._container.get("startupProbe")) and not await self._has_started(probe):
            return Unhealthy(probe="startup", grace=probe.get("terminationGracePeriodSeconds"))
        self.started = True
        self.ready = "readinessProbe" not in self._container
        self._changed()
        readiness = asyncio.create_task(self._watch_readiness())
        try:
            return await self._until_dead()
        finally:
            readiness.cancel()
            await asyncio.gather(readiness, return_exceptions=True)

    async def _has_started(self, probe: Object) -> bool:
        async for verdict in verdicts(ProbeTiming.of(probe), lambda seconds: self._ask(probe, seconds)):
            if verdict.message:
                self._report(f"Startup probe failed: {verdict.message}")
            if verdict.holds is not None:
                return verdict.holds
        raise AssertionError("verdicts never end")

    async def _watch_readiness(self) -> None:
        probe = self._container.get("readinessProbe")
        if probe is None:
            return
        async for verdict in verdicts(ProbeTiming.of(probe), lambda seconds: self._ask(probe, seconds)):
            if verdict.message:
                self._report(f"Readiness probe failed: {verdict.message}")
            if verdict.holds is not None and verdict.holds is not self.ready:
                self.ready = verdict.holds
                self._changed()

    async def _until_dead(self) -> Unhealthy:
        probe: Object = self._container.get("livenessProbe") or {}
        if not probe:
            await asyncio.Event().wait()
        async for verdict in verdicts(ProbeTiming.of(probe), lambda seconds: self._ask(probe, seconds)):
            if verdict.message:
                self._report(f"Liveness probe failed: {verdict.message}")
            if verdict.holds is False:
                break
        return Unhealthy(probe="liveness", grace=probe.get("terminationGracePeriodSeconds"))
