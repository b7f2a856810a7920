"""One honest service whose canary is promoted, and beside it some attacks: how it ends, and what it cost the operator.

The operator runs as its chart does: a pod with the chart's rights and probes, on a node that restarts it. The metrics
come from a Prometheus of its own, which scrapes the honest and the hostile pods.
Must not: judge the figures; the command and the test do.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from e2e.bed import Bed
from e2e.errors import CommandError
from e2e.hostile.attacks import Attack
from e2e.hostile.cost import Cost, in_pod
from e2e.hostile.scraping import prometheus_of
from e2e.hostile.tenant import Tenant
from e2e.monitor import Monitor
from e2e.side_by_side import CROWD, QUICK, Play
from e2e.stage import NotSeen, Stage, until

HONEST: Final = "chat"
OPERATOR_LABEL: Final = "app.kubernetes.io/name=vllm-autotuner"
REPLICAS: Final = 2
TURNS: Final = 2
"""Changes at once. One turn may be held for a day by whoever writes such phases (docs/multi-tenancy.md)."""
LONGEST_SILENCE: Final = 60.0
"""Seconds without the end of a tick: four of the chart's intervals."""
POLL: Final = 2.0
"""Seconds between two looks at what is reported: each is a call of kubectl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a story is played."""

    interval: str
    window: str
    strategy: Mapping[str, str]
    seconds: float = 0.0
    """It lasts at least so long: the attacks go on when the honest change is over."""
    patience: float = 300.0
    """Seconds for the honest change, and for what is reported."""


QUICKLY: Final = Pace(interval="2s", window="6s", strategy=QUICK | {"analysis": "60s", "bake": "4s"})
AS_INSTALLED: Final = Pace(
    interval="15s",
    window="30s",
    strategy={"warmUp": "30s", "analysis": "5m", "bake": "30s", "provisioningDeadline": "10m"},
    seconds=600.0,
    patience=900.0,
)
"""With the interval and the window of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """How a story ended."""

    outcome: str
    """Of the honest change, with its values."""
    seconds: float
    """From the first request to its end."""
    reported: Mapping[str, str]
    """By the attack's number: what is said of it, and where. Empty where nothing is."""
    uncounted: Mapping[str, Sequence[str]]
    """By the attack's number: budgets that have not counted it."""
    broken: Sequence[str]
    """Invariants of the honest service that did not hold, and moments in which it did not serve."""
    cost: Cost
    silent: float
    """Seconds since the last tick ended, at the end, without what the machine took from the operator."""
    lasted: float
    """Seconds for which the operator was watched."""

    @property
    def faults(self) -> list[str]:
        """What is wrong apart from the figures: an attack that was not met, an honest service that was harmed."""
        unmet = [f"{number} is reported nowhere" for number, said in self.reported.items() if not said]
        missing = [f"{number} is not counted as {', '.join(each)}" for number, each in self.uncounted.items() if each]
        silent = [f"no tick has ended for {self.silent:.0f} s"] if self.silent > LONGEST_SILENCE else []
        return [*unmet, *missing, *self.broken, *silent]


async def played(bed: Bed, attacks: Sequence[Attack], *, name: str, pace: Pace, first: bool = False) -> Story:
    """Play one story in namespaces that begin with `name`.

    `first`: the attacks are there when the operator starts, so that it lists them; else they come while it watches.
    """
    spaces = {attack.number: f"{name}-{attack.slug}" for attack in attacks}
    namespaces = [name, *spaces.values()]
    await asyncio.gather(*(asyncio.to_thread(bed.create_namespace, each) for each in namespaces))
    prometheus = prometheus_of(bed, name=f"prometheus-{name}", namespaces=namespaces)
    await prometheus.start()
    try:
        stage = Stage(bed, name, interval=pace.interval, window=pace.window)
        async with stage, Monitor(stage) as monitor:
            play = Play(stage, monitor)
            tenants = {number: Tenant(Play(stage.beside(space), monitor)) for number, space in spaces.items()}
            install = partial(
                stage.install_operator,
                watchNamespaces=namespaces,
                prometheus={"url": prometheus.url},
                concurrency={"changes": TURNS, "extraGPUs": "100%"},
                log={"format": "json"},
            )
            there = [attack for attack in attacks if first and not attack.needs_pods]
            await _launch(there, tenants)
            async with Cost(in_pod(stage)) as cost:
                await install()
                await _launch([attack for attack in attacks if attack not in there], tenants)
                return await _watched(play, attacks, tenants, cost, pace=pace)
    finally:
        with suppress(CommandError):
            text = await asyncio.to_thread(bed.kubectl, "-n", name, "logs", "-l", OPERATOR_LABEL, "--tail=-1")
            (bed.state_dir / "logs" / f"operator-{name}.log").write_text(text, encoding="utf-8")
        prometheus.kill()
        for each in namespaces:
            bed.delete_namespace(each)


async def _launch(attacks: Sequence[Attack], tenants: Mapping[str, Tenant]) -> None:
    await asyncio.gather(*(attack.launch(tenants[attack.number]) for attack in attacks))


async def _watched(
    play: Play, attacks: Sequence[Attack], tenants: Mapping[str, Tenant], cost: Cost, *, pace: Pace
) -> Story:
    began = time.monotonic()
    asking = [asyncio.create_task(_report(attack, tenants[attack.number], pace=pace)) for attack in attacks]
    try:
        tuning = {"strategy": pace.strategy}
        await play.serves(HONEST, clients=REPLICAS * CROWD, replicas=REPLICAS, tuning=tuning)
        loaded = time.monotonic()
        entry = await play.finished(HONEST, seconds=pace.patience)
        seconds = time.monotonic() - loaded
        said = await asyncio.gather(*asking)
    finally:
        for each in asking:
            each.cancel()
    await asyncio.sleep(max(0.0, pace.seconds - (time.monotonic() - began)))
    await play.monitor.at_rest(HONEST)
    return Story(
        outcome=_outcome(entry),
        seconds=seconds,
        reported={attack.number: text for attack, text in zip(attacks, said, strict=True)},
        uncounted={
            attack.number: [one.name for one in attack.budgets if not cost.exceeded[one.name]] for attack in attacks
        },
        broken=[*play.monitor.broken(HONEST), *play.monitor.lapses(HONEST)],
        cost=cost,
        silent=cost.stalled_for,
        lasted=time.monotonic() - began,
    )


async def _report(attack: Attack, tenant: Tenant, *, pace: Pace) -> str:
    try:
        said: str = await until(attack.what, lambda: attack.reported(tenant), seconds=pace.patience, every=POLL)
    except NotSeen:
        return ""
    return said


def _outcome(entry: Mapping[str, Any]) -> str:
    return f"{entry['outcome']}, {entry['knob']} {entry.get('fromValue')} -> {entry.get('toValue')}"
