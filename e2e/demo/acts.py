"""The six acts. Each one waits for what must really happen, reads it where users read it, or fails loudly."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from e2e.demo.manifests import NAMESPACE
from e2e.demo.screen import Screen
from e2e.demo.watchers import ReadyWatch
from e2e.stage import NotSeen, Stage, until
from vllm_autotuner.engine.flags import parse_flags


class ActFailed(AssertionError):
    """Something that had to happen did not, or the other way round."""


def check(held: object, text: str, *, screen: Screen) -> None:
    """Tell that a check held, or end the act."""
    if not held:
        raise ActFailed(text)
    screen.good(text)


@dataclass(slots=True)
class Play:
    """What the acts share."""

    stage: Stage
    screen: Screen
    patience: float = 1.0
    """Factor on every time limit: a real engine starts fifty times slower than a simulated one."""
    watches: dict[str, ReadyWatch] = field(default_factory=dict)

    async def status_when(
        self, name: str, what: str, holds: Callable[[Mapping[str, Any]], object], *, seconds: float
    ) -> dict[str, Any]:
        """Wait until the status of a service says something; the error tells what it says instead."""

        async def probe() -> dict[str, Any] | None:
            status = await self.stage.status(name)
            return status if holds(status) else None

        try:
            found: dict[str, Any] = await until(what, probe, seconds=seconds * self.patience)
        except NotSeen as error:
            raise ActFailed(f"{what}: {_brief(await self.stage.status(name))}") from error
        return found

    async def seats(self, name: str) -> int | None:
        """The max-num-seqs that the Deployment asks for."""
        template = (await self.stage.deployment(name))["spec"]["template"]
        return parse_flags(template["spec"]["containers"][0]["args"]).max_num_seqs

    async def start_log(self, name: str) -> str:
        """What the running engine wrote at its start, of its newest ready pod."""
        pods = sorted(await self.stage.ready_pods(name), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        return await asyncio.to_thread(
            self.stage.bed.kubectl, "-n", NAMESPACE, "logs", pods[-1]["metadata"]["name"], "-c", "vllm"
        )


async def recommend(play: Play) -> None:
    """Act 1: in mode Recommend the operator only talks."""
    play.screen.act("Act 1: chat runs in mode Recommend, and more people want to talk than it has seats")
    await until("chat serves", lambda: play.stage.ready_pods("chat"), seconds=60 * play.patience)
    play.watches["chat"] = ReadyWatch(play.stage, "chat")
    before = await play.stage.deployment("chat")
    status = await play.status_when(
        "chat",
        "a recommendation for maxNumSeqs",
        lambda found: found.get("recommendation", {}).get("knob") == "maxNumSeqs",
        seconds=90,
    )
    diagnosis, advice = status["diagnosis"], status["recommendation"]
    play.screen.say(f"{diagnosis['class']}: {diagnosis['message']}")
    for fact in diagnosis["evidence"][:3]:
        limit = "" if fact.get("threshold") is None else f" (limit {fact['threshold']})"
        play.screen.say(f"  {fact['name']}: {fact.get('value')} {fact.get('unit', '')}{limit} {fact.get('note') or ''}")
    play.screen.say(f"recommends maxNumSeqs {advice['current']} -> {advice['recommended']}")
    check(diagnosis["class"] == "ConcurrencyCapped", "the bottleneck is named ConcurrencyCapped", screen=play.screen)
    check(diagnosis["evidence"], "with evidence", screen=play.screen)
    await asyncio.sleep(3 * 2)  # three ticks in which nothing may happen: an absence cannot be waited for
    after = await play.stage.deployment("chat")
    same = before["metadata"]["generation"] == after["metadata"]["generation"]
    check(
        same and "activeChange" not in await play.stage.status("chat"),
        "the Deployment is untouched",
        screen=play.screen,
    )


async def raise_seats(play: Play) -> None:
    """Act 2: in mode Automatic it does what it said, and measures."""
    play.screen.act("Act 2: the mode becomes Automatic")
    play.stage.patch("chat", {"tuning": {"mode": "Automatic"}})
    ended = await _finished(play, "chat", seconds=180)
    seats = int(ended["toValue"])
    check(ended["outcome"] == "Succeeded", f"maxNumSeqs {ended['fromValue']} -> {seats} was kept", screen=play.screen)
    check(await play.seats("chat") == seats, f"the Deployment asks for {seats}", screen=play.screen)
    told = f"'max_num_seqs': {seats}" in await play.start_log("chat")
    check(told, "the running engine reports it in its start-up log", screen=play.screen)
    before, after = ended["before"]["ttftSeconds"], ended["after"]["ttftSeconds"]
    check(after < 0.5 * before, f"TTFT p95 fell from {_s(before)} to {_s(after)}", screen=play.screen)
    pods = [pod["metadata"]["name"] for pod in await play.stage.ready_pods("chat")]
    seen = await play.stage.prometheus(f'max(max_over_time(vllm:num_requests_running{{pod=~"{"|".join(pods)}"}}[30s]))')
    ran = float(seen[0]["value"][1]) if seen else 0
    check(ran > int(ended["fromValue"]), f"Prometheus has seen {ran:.0f} sequences running at once", screen=play.screen)


async def lower_seats(play: Play) -> None:
    """Act 3: more is not always better."""
    play.screen.act("Act 3: search is past its TPOT knee")
    ended = await _finished(play, "search", seconds=180)
    check(
        ended["outcome"] == "Succeeded",
        f"maxNumSeqs {ended['fromValue']} -> {ended['toValue']} was kept",
        screen=play.screen,
    )
    check(int(ended["toValue"]) < int(ended["fromValue"]), "it was lowered", screen=play.screen)
    before, after = ended["before"]["tpotSeconds"], ended["after"]["tpotSeconds"]
    check(before > 0.050 >= after, f"TPOT p95 fell from {_s(before)} to {_s(after)}, inside 50 ms", screen=play.screen)


async def scale_out(play: Play) -> None:
    """Act 4: when no flag helps, replicas do; within two loop intervals after 30 s of waiting."""
    play.screen.act("Act 4: the load on api grows beyond one replica")
    waiting = ReadyWatch.waiting_since(play.stage, "api")
    play.stage.loads["api"].clients = 20
    began = await waiting
    play.screen.say("requests begin to wait")
    status = await play.status_when(
        "api", "two replicas or more", lambda found: found.get("effective", {}).get("replicas", 1) >= 2, seconds=120
    )
    took = _moment(await play.stage.deployment("api")) - began
    play.screen.say(f"{status['diagnosis']['class']}: {status['diagnosis']['message']}")
    replicas = status["effective"]["replicas"]
    interval = float(play.stage.interval.removesuffix("s"))
    # One scrape and one watch round trip lie between the engine's first waiting request and what a tick can know.
    limit = 30 + 2 * interval + 3
    check(took <= limit, f"asked for {replicas} replicas {took:.0f} s after requests began to wait", screen=play.screen)
    await until(
        "all replicas of api serve",
        lambda: _enough(play.stage, "api", replicas),
        seconds=60 * play.patience,
    )
    check(True, f"{replicas} replicas serve", screen=play.screen)


async def roll_back(play: Play) -> None:
    """Act 5: a change that hurts is undone, and remembered."""
    play.screen.act("Act 5: batch looks as if more seats would help, but its engine degrades with them")
    ended = await _finished(play, "batch", seconds=240)
    check(
        ended["outcome"] == "RolledBack",
        f"maxNumSeqs {ended['fromValue']} -> {ended['toValue']} was rolled back",
        screen=play.screen,
    )
    play.screen.say(f"because: {ended['reason']}")
    check(await play.seats("batch") == 8, "the Deployment asks for 8 again", screen=play.screen)
    status = await play.stage.status("batch")
    remembered = [entry["candidate"] for entry in status.get("failureMemory", [])]
    check(f"maxNumSeqs={ended['toValue']}" in remembered, f"{remembered[0]} is remembered", screen=play.screen)
    watch = play.watches["batch"]
    seen = "; ".join(watch.lapses[:3]) or "never otherwise"
    what = f"batch was Ready each of the {watch.samples} times it was looked at ({seen})"
    check(watch.samples > 0 and not watch.lapses, what, screen=play.screen)


async def explain(play: Play) -> None:
    """Act 6: what happened, in the words of the product."""
    play.screen.act("Act 6: kubectl get vllm, and vllm-autotuner explain")
    table = play.stage.bed.kubectl("-n", NAMESPACE, "get", "vllm")
    play.screen.print(table)
    check("Automatic" in table and "DIAGNOSIS" in table, "kubectl shows mode and diagnosis", screen=play.screen)
    command = [sys.executable, "-m", "vllm_autotuner", "explain", "chat", "-n", NAMESPACE]
    told = await asyncio.to_thread(
        subprocess.run,
        [*command, "--kubeconfig", str(play.stage.bed.admin_kubeconfig)],
        capture_output=True,
        text=True,
        check=False,
    )
    play.screen.print(told.stdout)
    told_why = told.returncode == 0 and "maxNumSeqs" in told.stdout and "TTFT" in told.stdout
    check(told_why, f"explain tells what changed and why{told.stderr and ': ' + told.stderr}", screen=play.screen)


Act = Callable[[Play], Awaitable[None]]
ALL: Final[tuple[Act, ...]] = (
    recommend,
    raise_seats,
    lower_seats,
    scale_out,
    roll_back,
    explain,
)


async def _finished(play: Play, name: str, *, seconds: float) -> dict[str, Any]:
    """Tell the states of the change as they come, and return its entry in the history."""
    told = ""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds * play.patience
    while True:
        status = await play.stage.status(name)
        if status.get("history"):
            entry: dict[str, Any] = status["history"][0]
            return entry
        change = status.get("activeChange")
        state = (
            ""
            if change is None
            else f"{change['knob']} {change.get('fromValue')} -> {change['toValue']}: {change['state']}"
        )
        if change is not None and state != told:
            play.screen.say(f"{state} ({change['stateReason']})")
            told = state
        if loop.time() > deadline:
            raise ActFailed(f"no change of {name} was finished in {seconds * play.patience:.0f} s: {_brief(status)}")
        await asyncio.sleep(0.25)


async def _enough(stage: Stage, name: str, replicas: int) -> bool:
    return len(await stage.ready_pods(name)) >= replicas


def _moment(deployment: Mapping[str, Any]) -> float:
    """When the operator last wrote the Deployment, by the API server's clock."""
    from datetime import datetime

    times = [
        datetime.fromisoformat(entry["time"]).timestamp()
        for entry in deployment["metadata"]["managedFields"]
        if entry["manager"] == "vllm-autotuner"
    ]
    return max(times)


def _brief(status: Mapping[str, Any]) -> str:
    diagnosis = status.get("diagnosis", {})
    change = status.get("activeChange") or {}
    advice = status.get("recommendation") or {}
    return (
        f"diagnosis {diagnosis.get('class')} ({diagnosis.get('message')}); change {change.get('state')} "
        f"({change.get('stateReason')}); recommendation {advice.get('recommended')} ({advice.get('reason')})"
    )


def _s(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
