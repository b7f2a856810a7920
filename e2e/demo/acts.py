"""The eight acts. Each one waits for its result, reads it where users read it, and fails if it does not come."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from e2e.demo.manifests import NAMESPACE
from e2e.demo.play import ActFailed, Kinds, Play, in_words
from e2e.demo.watchers import waiting_since
from e2e.monitor import SERVICES
from vllm_autotuner.change.trial_deployments import Track
from vllm_autotuner.workload.labels import STABLE

CANARY: Final = "Canary"
"""`activeChange.strategy`."""
CROWD: Final = 8
"""Clients of each replica with max-num-seqs 4: twice as many as it serves at once."""
RAMP: Final = (4, 8, 14, 20)
"""Clients of search, step by step: a knee is only visible beside smaller batches."""
RAMP_SECONDS: Final = 12


async def recommend(play: Play) -> None:
    """Act 1: in mode Recommend the operator changes nothing."""
    play.screen.act("Act 1", "chat runs in mode Recommend and gets more requests than it has running-sequence slots")
    before = await play.stage.deployment("chat")
    await play.load("chat", CROWD * before["spec"]["replicas"])
    status = await play.status_when(
        "chat",
        "a recommendation for maxNumSeqs",
        lambda found: (found.get("recommendation") or {}).get("knob") == "maxNumSeqs",
        seconds=90,
    )
    diagnosis, advice = status["diagnosis"], status["recommendation"]
    play.screen.say(f"{diagnosis['class']}: {diagnosis['message']}")
    for fact in diagnosis["evidence"][:3]:
        limit = "" if fact.get("threshold") is None else f" (threshold {fact['threshold']})"
        play.screen.say(f"  {fact['name']}: {fact.get('value')} {fact.get('unit', '')}{limit} {fact.get('note') or ''}")
    play.screen.say(f"recommendation: maxNumSeqs {advice['current']} -> {advice['recommended']}")
    play.check(diagnosis["class"] == "ConcurrencyCapped", "the diagnosis is ConcurrencyCapped")
    play.check(diagnosis["evidence"], "the diagnosis has evidence")
    await asyncio.sleep(3 * 2)  # three ticks in which nothing may happen: an absence cannot be waited for
    after = await play.stage.deployment("chat")
    same = before["metadata"]["generation"] == after["metadata"]["generation"]
    play.check(same and "activeChange" not in await play.stage.status("chat"), "the Deployment is unchanged")


async def raise_seats(play: Play) -> None:
    """Act 2: in mode Automatic the operator applies the change and measures it; from two replicas on with a canary."""
    replicas = len(play.pods.ready_now("chat"))
    how = "three replicas: by canary" if replicas == 3 else "one replica: in place"
    play.screen.act("Act 2", f"chat is switched to mode Automatic ({how})")
    generation, slow = await play.generation("chat"), await play.ttft_p95("chat")
    play.stage.patch("chat", {"tuning": {"mode": "Automatic"}})
    async for change in play.changes("chat", seconds=240):
        if change["strategy"] == CANARY and change["state"] == "Analyzing":
            await _canary_serves(play, "chat", change, replicas=replicas, generation=generation)
            told = await play.explain("chat")
            both = change["canaryRef"]["name"] in told and change["baselineRef"]["name"] in told
            play.check(both, "explain shows the canary, the baseline and the measurements so far")
    ended = await play.ended("chat")
    seats = int(ended["toValue"])
    play.check(ended["outcome"] == "Succeeded", f"maxNumSeqs {ended['fromValue']} -> {seats} succeeded")
    await play.ready("chat", of={(STABLE, seats): replicas}, seconds=60)
    play.check(
        await play.seats("chat") == seats, f"the Deployment and each of its {replicas} pods run max-num-seqs {seats}"
    )
    reported = f"'max_num_seqs': {seats}" in await play.start_log("chat")
    play.check(reported, "the running engine reports the value in its start-up log")
    before, after = ended["before"]["ttftSeconds"], ended["after"]["ttftSeconds"]
    if replicas > 1:
        told = (
            f"{in_words(before)} in the baseline (max-num-seqs {ended['fromValue']}), {in_words(after)} in the canary"
        )
        play.check(after < 0.75 * before, f"TTFT p95, measured at the same time: {told}")
        await play.trials_are_gone("chat", Track.BASELINE, Track.CANARY)
    else:
        play.check(after < 0.5 * before, f"TTFT p95 fell from {in_words(before)} to {in_words(after)}")
    play.served_all_along("chat", pods=replicas)
    fast = await play.until("TTFT p95 falls by half", lambda: _halved(play, "chat", slow), seconds=60)
    play.check(True, f"TTFT p95 of the whole service fell from {in_words(slow)} to {in_words(fast)}")
    await _was_used(play, more_than=int(ended["fromValue"]))


async def lower_seats(play: Play) -> None:
    """Act 3: past the TPOT knee max-num-seqs is lowered; a single replica is changed in place."""
    play.screen.act("Act 3", "search is past its TPOT knee; with one replica it is changed in place")
    load = await play.load("search", RAMP[0])
    for clients in RAMP[1:]:
        await asyncio.sleep(RAMP_SECONDS)
        load.clients = clients
    async for change in play.changes("search", seconds=240):
        if change["state"] == "Provisioning":
            play.check(
                change["strategy"] == "InPlace",
                "no canary: with a single replica it would receive half of the requests",
            )
    ended = await play.ended("search")
    play.check(ended["outcome"] == "Succeeded", f"maxNumSeqs {ended['fromValue']} -> {ended['toValue']} succeeded")
    play.check(int(ended["toValue"]) < int(ended["fromValue"]), "the new value is lower")
    before, after = ended["before"]["tpotSeconds"], ended["after"]["tpotSeconds"]
    play.check(before > 0.050 >= after, f"TPOT p95 fell from {in_words(before)} to {in_words(after)}, within 50 ms")
    old, new = (f"max-num-seqs {ended[side]}" for side in ("fromValue", "toValue"))
    served = [pod.seats for pod in play.pods.of("search") if pod.was_ready]
    play.check(served == [int(ended["fromValue"]), int(ended["toValue"])], f"one pod with {old}, then one with {new}")
    play.served_all_along("search", pods=1)
    load.clients = 1


async def scale_out(play: Play) -> None:
    """Act 4: when no flag helps, replicas are added; within two loop intervals after 30 s of waiting."""
    play.screen.act("Act 4", "the load on api exceeds one replica")
    load = await play.load("api", 4)
    await asyncio.sleep(3)
    waiting = waiting_since(play.stage, "api")
    load.clients = 20
    began = await waiting
    play.screen.say("requests start to wait")
    status = await play.status_when(
        "api",
        "two replicas or more",
        lambda found: (found.get("effective") or {}).get("replicas", 1) >= 2,
        seconds=120,
    )
    # The intent stands in the status first; this is about when it was acted upon.
    asked = await play.until("the Deployment asks for them", lambda: _asks_for_more(play, "api"), seconds=60)
    took = _moment(asked) - began
    play.screen.say(f"{status['diagnosis']['class']}: {status['diagnosis']['message']}")
    replicas = status["effective"]["replicas"]
    interval = float(play.stage.interval.removesuffix("s"))
    # One scrape and one watch round trip lie between the engine's first waiting request and what a tick can know.
    limit = 30 + 2 * interval + 3
    play.check(
        0 < took <= limit, f"the operator requested {replicas} replicas {took:.0f} s after requests started to wait"
    )
    await play.until("all replicas of api serve", lambda: len(play.pods.ready_now("api")) >= replicas, seconds=60)
    play.check(True, f"{replicas} replicas are ready")


async def give_back(play: Play) -> None:
    """Act 7: a kept flag makes replicas superfluous, and they go. Between the two nothing is asked of anybody."""
    play.screen.act("Act 7", "the owner of api, whose replicas came one by one, now allows max-num-seqs to be changed")
    play.stage.patch("api", {"tuning": {"maxNumSeqs": {"min": 2, "max": 32}}})
    async for change in play.changes("api", seconds=240):
        if change["state"] == "Provisioning":
            play.screen.say(change["reason"])
    ended = await play.ended("api")
    play.check(ended["outcome"] == "Succeeded", f"maxNumSeqs {ended['fromValue']} -> {ended['toValue']} succeeded")
    # Requests waited during the trial as well, so that more replicas may have come meanwhile.
    most = max((found.get("effective") or {}).get("replicas", 1) for found in play.monitor.statuses("api"))
    status = await play.status_when(
        "api", "fewer replicas", lambda found: found["effective"]["replicas"] < most, seconds=180
    )
    play.screen.say(status["effective"]["replicasReason"])
    after = await play.until("the Deployment asks for fewer", lambda: _asks_for_fewer(play, "api", most), seconds=60)
    play.check(after < most, f"{most} -> {after} replicas, for the same {play.stage.loads['api'].clients} clients")
    play.served_all_along("api", pods=1)


async def roll_back(play: Play) -> None:
    """Act 5: a change that regresses is rolled back and not retried; only the canary ran it."""
    play.screen.act("Act 5", "batch appears to need a higher max-num-seqs, but its engine gets slower with it")
    generation = await play.generation("batch")
    load = await play.load("batch", CROWD * 3)
    async for change in play.changes("batch", seconds=240):
        if change["state"] == "Analyzing":
            await _canary_serves(play, "batch", change, replicas=3, generation=generation)
    ended = await play.ended("batch")
    bad, good = int(ended["toValue"]), int(ended["fromValue"])
    play.check(ended["outcome"] == "RolledBack", f"maxNumSeqs {good} -> {bad} was rolled back")
    play.screen.say(f"reason: {ended['reason']}")
    await play.trials_are_gone("batch", Track.BASELINE, Track.CANARY)
    ran = [pod for pod in play.pods.of("batch") if pod.seats == bad]
    only = [pod.track for pod in ran] == [Track.CANARY]
    play.check(only, f"only the canary ran max-num-seqs {bad} ({', '.join(pod.name for pod in ran)})")
    untouched = await play.generation("batch") == generation and await play.seats("batch") == good
    play.check(untouched, f"the Deployment of batch was never written; it still has max-num-seqs {good}")
    remembered = [entry["candidate"] for entry in (await play.stage.status("batch")).get("failureMemory", [])]
    play.check(remembered == [f"maxNumSeqs={bad}"], f"maxNumSeqs={bad} is recorded as a failed value")
    play.served_all_along("batch", pods=3)
    load.clients = 3


async def find_no_device(play: Play) -> None:
    """Act 6: without a free GPU for the canary the change is rejected. With rights in the whole cluster the operator
    would count free GPUs and not start."""
    play.screen.act(
        "Act 6", "code uses the last two GPUs; with rights in one namespace only, the operator cannot count free GPUs"
    )
    generation = await play.generation("code")
    load = await play.load("code", CROWD * 2)
    async for change in play.changes("code", seconds=180):
        if change["state"] == "Provisioning":
            pending = await play.until("a Pending canary", lambda: _pending(play, "code"), seconds=20)
            play.screen.say(f"Pending: {pending.name}: {pending.waits_for}")
            play.check("nvidia.com/gpu" in pending.waits_for, "there is no free GPU for the canary")
    ended = await play.ended("code")
    play.check(ended["outcome"] == "Rejected", "the change is Rejected at its provisioning deadline")
    play.screen.say(f"reason: {ended['reason']}")
    told = ended["reason"].startswith("Unschedulable: there is no room for one more pod")
    play.check(told and "nvidia.com/gpu" in ended["reason"], "the reason names the missing resource")
    await play.trials_are_gone("code", Track.CANARY)
    untouched = await play.generation("code") == generation
    play.check(
        untouched and not (await play.stage.status("code")).get("failureMemory"),
        "the Deployment of code was never written, and the value is not recorded as failed",
    )
    play.served_all_along("code", pods=2)
    load.clients = 2


async def explain(play: Play) -> None:
    """Act 8: the results, as kubectl and explain show them."""
    play.screen.act("Act 8", "kubectl get vllm, and vllm-autotuner explain")
    table = play.stage.bed.kubectl("-n", NAMESPACE, "get", "vllm")
    play.screen.print(table)
    play.check("Automatic" in table and "DIAGNOSIS" in table, "kubectl shows mode and diagnosis")
    told = await play.explain("chat")
    play.check("maxNumSeqs" in told and "TTFT" in told, "explain shows what changed and why")
    await _nothing_was_broken(play)


Act = Callable[[Play], Awaitable[None]]
OF_CHAT: Final[tuple[Act, ...]] = (recommend, raise_seats)
ALL: Final[tuple[Act, ...]] = (*OF_CHAT, lower_seats, scale_out, roll_back, find_no_device, give_back, explain)


async def _canary_serves(play: Play, name: str, change: Mapping[str, Any], *, replicas: int, generation: int) -> None:
    """Check that a canary and a baseline serve beside the unchanged pods."""
    old, new = int(change["fromValue"]), int(change["toValue"])
    kinds: Kinds = {(STABLE, old): replicas, (Track.CANARY.value, new): 1, (Track.BASELINE.value, old): 1}
    found = {pod.track: pod.name for pod in await play.ready(name, of=kinds, seconds=60)}
    play.check(True, f"canary: {found[Track.CANARY]} serves with max-num-seqs {new}")
    play.check(True, f"baseline: {found[Track.BASELINE]}, started at the same time, serves with max-num-seqs {old}")
    untouched = await play.generation(name) == generation
    play.check(untouched, f"the {replicas} existing pods are unchanged")


async def _nothing_was_broken(play: Play) -> None:
    """Check all invariants, for every service and every status that was written."""
    names = [each["metadata"]["name"] for each in (await play.stage.get(SERVICES.format(namespace=NAMESPACE)))["items"]]
    for name in names:
        await play.monitor.at_rest(name)
    seen = sum(len(play.monitor.statuses(name)) for name in names)
    broken = [f"{name}: {each}" for name in names for each in play.monitor.broken(name)]
    invariants = f"all invariants (docs/invariants.md) held in {seen} statuses of {len(names)} services"
    play.check(seen and not broken, f"{invariants}{'; '.join(broken[:3])}")


def _pending(play: Play, name: str) -> Any:
    return next((pod for pod in play.pods.of(name) if pod.track == Track.CANARY and pod.waits_for), None)


async def _halved(play: Play, name: str, before: float | None) -> float | None:
    if before is None:
        raise ActFailed(f"the earlier TTFT of {name} is unknown")
    now = await play.ttft_p95(name)
    return now if now is not None and now < 0.5 * before else None


async def _was_used(play: Play, *, more_than: int) -> None:
    """Check that the additional slots were used, by the engines' own metrics."""
    pods = "|".join(pod.name for pod in play.pods.ready_now("chat"))
    seen = await play.stage.prometheus(f'max(max_over_time(vllm:num_requests_running{{pod=~"{pods}"}}[30s]))')
    ran = float(seen[0]["value"][1]) if seen else 0
    play.check(ran > more_than, f"one engine ran {ran:.0f} sequences at the same time, according to Prometheus")


async def _asks_for_more(play: Play, name: str) -> Any:
    deployment = await play.stage.deployment(name)
    return deployment if deployment["spec"]["replicas"] > 1 else None


async def _asks_for_fewer(play: Play, name: str, most: int) -> int | None:
    replicas: int = (await play.stage.deployment(name))["spec"]["replicas"]
    return replicas if replicas < most else None


def _moment(deployment: Mapping[str, Any]) -> float:
    """When the operator last wrote the Deployment, by the API server's clock."""
    times = [
        datetime.fromisoformat(entry["time"]).timestamp()
        for entry in deployment["metadata"]["managedFields"]
        if entry["manager"] == "vllm-autotuner"
    ]
    return max(times)
