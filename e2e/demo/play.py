"""What the acts share: one service's story as everybody can see it, and checks that end an act when they do not hold.

Apart from the acts, which say what must happen; here is how it is waited for and read.
Must not: ask the operator anything that a user could not.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from e2e.demo.manifests import NAMESPACE
from e2e.demo.screen import Chapter
from e2e.demo.watchers import PodWatch, SeenPod
from e2e.monitor import Monitor
from e2e.stage import NotSeen, Stage, condition, until
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.simulation.load import Load, Traffic
from vllm_autotuner.workload.labels import STABLE

TTFT_P95: Final = (
    "histogram_quantile(0.95, sum by (le) "
    '(rate(vllm:time_to_first_token_seconds_bucket{{namespace="{namespace}",pod=~"{pods}"}}[12s])))'
)


Kinds: TypeAlias = Mapping[tuple[str, int | None], int]
"""How many pods of each track and max-num-seqs."""


class ActFailed(AssertionError):
    """Something that had to happen did not, or the other way round."""


@dataclass(slots=True)
class Play:
    """What an act works with."""

    stage: Stage
    monitor: Monitor
    pods: PodWatch
    screen: Chapter
    traffic: Traffic
    patience: float = 1.0
    """Factor on every time limit: a real engine starts fifty times slower than a simulated one."""

    def check(self, held: object, text: str) -> None:
        """Tell that a check held, or end the act."""
        if not held:
            raise ActFailed(text)
        self.screen.good(text)

    async def serves(self, name: str) -> None:
        """Wait until a service is Ready."""
        await self.status_when(name, f"{name} serves", lambda found: condition(found, "Ready") == "True", seconds=60)

    async def load(self, name: str, clients: int) -> Load:
        """Let so many clients talk to a service."""
        return await self.stage.load_on(name, clients=clients, traffic=self.traffic)

    async def status_when(
        self, name: str, what: str, holds: Callable[[Mapping[str, Any]], object], *, seconds: float
    ) -> Mapping[str, Any]:
        """Wait until the status of a service says something; the error tells what it says instead."""
        try:
            return await self.monitor.when(name, holds, seconds=seconds * self.patience)
        except TimeoutError:
            raise ActFailed(f"{what}: {brief(await self.stage.status(name))}") from None

    async def until(self, what: str, probe: Callable[[], Any | Awaitable[Any]], *, seconds: float) -> Any:
        """Wait until `probe` returns something true, and return it."""
        return await until(what, probe, seconds=seconds * self.patience)

    async def changes(self, name: str, *, seconds: float) -> AsyncIterator[Mapping[str, Any]]:
        """Tell each state of the first change of a service as it comes, and yield the change; ends with it."""
        told, seen = "", 0
        deadline = asyncio.get_running_loop().time() + seconds * self.patience
        while True:
            found = self.monitor.statuses(name)
            for status in found[seen:]:
                if status.get("history"):
                    return
                change = status.get("activeChange") or {}
                if change and change["state"] != told:
                    told = change["state"]
                    values = f"{change['knob']} {change.get('fromValue')} -> {change['toValue']}"
                    self.screen.say(f"{name} {values}: {told} ({change['stateReason']})")
                    yield change
            seen = len(found)
            left = deadline - asyncio.get_running_loop().time()
            try:
                await self.monitor.when(name, partial(self._has_more, name, seen), seconds=left)
            except TimeoutError:
                problem = f"no change of {name} finished within {seconds * self.patience:.0f} s"
                raise ActFailed(f"{problem}: {brief(await self.stage.status(name))}") from None

    def _has_more(self, name: str, seen: int, _: object) -> bool:
        return len(self.monitor.statuses(name)) > seen

    async def ended(self, name: str) -> Mapping[str, Any]:
        """The first entry in the history of a service."""
        history: list[Mapping[str, Any]] = (await self.stage.status(name)).get("history") or []
        if not history:
            raise ActFailed(f"the history of {name} is empty")
        return history[0]

    async def generation(self, name: str) -> int:
        """How often the Deployment of a service was written, its creation included."""
        return int((await self.stage.deployment(name))["metadata"]["generation"])

    async def seats(self, name: str) -> int | None:
        """The max-num-seqs in the Deployment of a service."""
        template = (await self.stage.deployment(name))["spec"]["template"]
        return parse_flags(template["spec"]["containers"][0]["args"]).max_num_seqs

    async def start_log(self, name: str) -> str:
        """What the running engine wrote at its start, of the service's newest own pod."""
        own = [pod for pod in self.pods.ready_now(name) if pod.track == STABLE]
        return await asyncio.to_thread(self.stage.bed.kubectl, "-n", NAMESPACE, "logs", own[-1].name, "-c", "vllm")

    async def ready(self, name: str, *, of: Kinds, seconds: float) -> list[SeenPod]:
        """Wait until just these pods of a service serve: how many of each track and max-num-seqs."""

        def probe() -> list[SeenPod]:
            found = self.pods.ready_now(name)
            kinds = [(pod.track, pod.seats) for pod in found]
            return found if {kind: kinds.count(kind) for kind in kinds} == of else []

        wanted = ", ".join(f"{count} {track} with max-num-seqs {seats}" for (track, seats), count in of.items())
        found: list[SeenPod] = await self.until(f"{name} serves with {wanted}", probe, seconds=seconds)
        return found

    async def trials_are_gone(self, name: str, *tracks: str) -> None:
        """Check that just these trial Deployments were made for a service, and that none is left."""

        def gone() -> bool:
            created, deleted = self.monitor.trials(name)
            return created == deleted == sorted(tracks)

        try:
            await self.until("the trials are deleted", gone, seconds=30)
        except NotSeen:
            created, deleted = self.monitor.trials(name)
            raise ActFailed(f"trials of {name}: {created} were created, {deleted} deleted") from None
        self.check(
            True, f"{' and '.join(sorted(tracks))} are deleted" if len(tracks) > 1 else f"{tracks[0]} is deleted"
        )

    def served_all_along(self, name: str, *, pods: int) -> None:
        """Check that a service stayed Ready, with so many pods of its own, in all that was ever written about it."""
        lapses, fewest = self.monitor.lapses(name), self.monitor.fewest_available(name)
        seen = len(self.monitor.statuses(name))
        what = f"{name} was Ready in each of {seen} statuses, and never had fewer than {fewest} of its own pods"
        self.check(seen and not lapses and fewest is not None and fewest >= pods, f"{what}{'; '.join(lapses[:3])}")

    async def ttft_p95(self, name: str) -> float | None:
        """TTFT p95 of a service's own pods over the last seconds, as anybody can ask Prometheus for it."""
        pods = "|".join(pod.name for pod in self.pods.ready_now(name) if pod.track == STABLE)
        found = await self.stage.prometheus(TTFT_P95.format(namespace=NAMESPACE, pods=pods))
        value = float(found[0]["value"][1]) if found else float("nan")
        return value if value >= 0 else None

    async def explain(self, name: str) -> str:
        """Run `vllm-autotuner explain`, show what it prints, and return it."""
        command = [sys.executable, "-m", "vllm_autotuner", "explain", name, "-n", NAMESPACE]
        told = await asyncio.to_thread(
            subprocess.run,
            [*command, "--kubeconfig", str(self.stage.bed.admin_kubeconfig)],
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode != 0:
            raise ActFailed(f"vllm-autotuner explain {name}: exit code {told.returncode}: {told.stderr}")
        self.screen.print(told.stdout)
        return told.stdout


def brief(status: Mapping[str, Any]) -> str:
    """The parts of a status that explain a failure."""
    diagnosis = status.get("diagnosis", {})
    change = status.get("activeChange") or {}
    advice = status.get("recommendation") or {}
    return (
        f"diagnosis {diagnosis.get('class')} ({diagnosis.get('message')}); change {change.get('state')} "
        f"({change.get('stateReason')}); recommendation {advice.get('recommended')} ({advice.get('reason')})"
    )


def in_words(seconds: float | None) -> str:
    """A duration as text."""
    return "unknown" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
