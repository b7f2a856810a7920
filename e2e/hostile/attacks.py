"""What a tenant may do to the operator, by the numbers of the threat model, and where each of it is reported.

A row is an attack: what is done, and what its own object says once the operator has met it. Whatever is reported on
nobody, or does not count where a budget should bite, has not been met, and the story fails.
Must not: touch an honest service. Who is scraped under another one's labels is a victim of his own (B11).
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest

from e2e import odd_engines
from e2e.hostile.scraping import JOB
from e2e.hostile.tenant import Tenant
from e2e.operator_account import vllm_service
from e2e.side_by_side import CROWD, QUICK, Refused, change_of
from e2e.stage import ENGINE_IMAGE, MODEL, engine_env, until
from vllm_autotuner.budgets import (
    ANSWER_SERIES,
    COMMAND_LINE_BYTES,
    JSON_DEPTH,
    LOG_LINE_BYTES,
    MANAGED_FIELDS_BYTES,
    OBJECT_BYTES,
    POD_TEMPLATE_BYTES,
    Budget,
)
from vllm_autotuner.workload.labels import MANAGED_BY, OPERATOR, SERVICE

LARGE_BYTES: Final = 1_300_000
"""Near the largest object that etcd takes."""
SHELL_BYTES: Final = 200_000
NO_NODE: Final = {"kubernetes.io/hostname": "none"}
"""The pod of such a command line stays Pending: no kernel would start it."""
CHANGE: Final = {
    "id": "c",
    "generation": 1,
    "knob": "maxNumSeqs",
    "toValue": "8",
    "state": "Analyzing",
    "from": {},
    "to": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack."""

    number: str
    """In the threat model."""
    what: str
    launch: Callable[[Tenant], Awaitable[None]]
    reported: Callable[[Tenant], Awaitable[str]]
    """What is said of it, and where; empty while nothing is."""
    budgets: tuple[Budget, ...] = ()
    """That must count it."""
    needs_pods: bool = False
    """It cannot begin before the operator runs."""

    @property
    def slug(self) -> str:
        """For the name of a namespace."""
        return self.number.lower().replace(", ", "-")


async def all_of(*said: Awaitable[str]) -> str:
    """The first of these texts, once none of them is empty."""
    found = [await each for each in said]
    return found[0] if all(found) else ""


# --- B1 to B3, B10: pod templates -------------------------------------------------------------------------------------


async def _deep(tenant: Tenant) -> None:
    text = json.dumps(vllm_service(tenant.namespace, "deep", podTemplate={"spec": {"a": "HERE"}}))
    await tenant.post(text.replace('"HERE"', '{"a":' * 3000 + "1" + "}" * 3000))


async def _large(tenant: Tenant, *, objects: int) -> None:
    for number in range(objects):
        # Half of them in keys, which the API server repeats in managedFields.
        keys = {f"key-{key:08}": 1 for key in range(LARGE_BYTES // 40)}
        volumes = [{"name": f"volume-{each:08}", "emptyDir": {}} for each in range(LARGE_BYTES // 45)]
        spec = {"affinity": keys} if number % 2 else {"volumes": volumes}
        await tenant.post(json.dumps(vllm_service(tenant.namespace, f"large-{number}", podTemplate={"spec": spec})))


async def _too_large(tenant: Tenant, *, objects: int) -> str:
    names = [f"large-{number}" for number in range(objects)]
    return await all_of(*(tenant.stalled(name, "InvalidSpec", "larger than 64 KiB") for name in names))


async def _typos(tenant: Tenant) -> None:
    for name in ("typo", "typo-too"):
        await tenant.creates(name, podTemplate={"spec": {"nodeSelectr": {"gpu": "yes"}}})


async def _hosts(tenant: Tenant) -> None:
    await tenant.creates("root", podTemplate={"spec": {"hostNetwork": True, "hostPID": True}})


# --- B4, B5, B12: command lines and logs ------------------------------------------------------------------------------


async def _shell(tenant: Tenant) -> None:
    script = "exec vllm serve " + "'a' " * (SHELL_BYTES // 4)
    await tenant.adopts(
        "shell",
        container={"image": ENGINE_IMAGE, "command": ["sh", "-c", script]},
        nodeSelector=NO_NODE,
    )
    number = "9" * 5000
    await tenant.adopts(
        "number",
        container={"image": ENGINE_IMAGE, "args": ["--model", MODEL, "--max-num-seqs", number]},
        nodeSelector=NO_NODE,
    )


async def _unreadable_flags(tenant: Tenant) -> str:
    return await all_of(tenant.told("shell", "more than 32 KiB"), tenant.told("number", "max-num-seqs"))


async def _garrulous(tenant: Tenant) -> None:
    await tenant.creates("garrulous", engine={"image": odd_engines.image("garrulous")})


async def _hidden(tenant: Tenant) -> str:
    assert not await tenant.shows(*odd_engines.SECRETS), "a credential of a log is on an object"
    return await tenant.told("garrulous", "ValueError: https://(hidden)@hub.example")


# --- B13: workloads ---------------------------------------------------------------------------------------------------


async def _heavy(tenant: Tenant) -> None:
    # Its pods have the label by which the operator watches its own.
    await tenant.adopts(
        "heavy",
        labels={MANAGED_BY: OPERATOR},
        container={"image": ENGINE_IMAGE, "args": ["--model", MODEL]},
        nodeSelector=NO_NODE | {f"key-{key:08}": "" for key in range(LARGE_BYTES // 40)},
    )


# --- B6, B7, B11: series ----------------------------------------------------------------------------------------------


async def _odd(tenant: Tenant) -> None:
    for name in ("edges", "edgeless"):
        await tenant.creates(name, engine={"image": odd_engines.image(name)})
    template = {"metadata": {"labels": {JOB: "native"}}, **engine_env(startup_seconds=1)}
    await tenant.creates("native", engine={"image": odd_engines.image("native")}, podTemplate=template)


async def _odd_told(tenant: Tenant) -> str:
    return await all_of(
        tenant.told("edges", "le='abc'"),
        tenant.told("edgeless", "without the label le"),
        tenant.told("native", "native histogram"),
    )


async def _crowd(tenant: Tenant, *, series: int) -> None:
    await tenant.adopts(
        "crowd",
        labels={JOB: "large"},
        container={
            "image": odd_engines.image("crowd"),
            "args": ["--model", MODEL, "--max-num-seqs=4"],
            "env": [{"name": "CROWD_SERIES", "value": str(series)}],
        },
    )


async def _forged(tenant: Tenant) -> None:
    await tenant.creates("victim", tuning={"mode": "Automatic"})
    (pod, *_) = await until("the victim has a pod", lambda: tenant.play.stage.pods("victim"), seconds=300)
    where = {"FORGED_NAMESPACE": tenant.namespace, "FORGED_POD": pod["metadata"]["name"]}
    await tenant.runs("forger", image="forger", job="forged", **where)
    await tenant.runs("slow", image="nonsense", job="slow")


# --- B8, B9: dates and durations --------------------------------------------------------------------------------------


async def _dates(tenant: Tenant) -> None:
    for name, moment in (("late", "9999-12-31T23:59:59Z"), ("early", "0001-01-01T00:00:00+14:00")):
        await tenant.creates(name)
        await tenant.edits_status(name, {"activeChange": {**CHANGE, "deadline": moment, "startedAt": moment}})


async def _odd_dates(tenant: Tenant) -> str:
    words = ("InvalidStatus", "between the years 1970 and 2500")
    return await all_of(tenant.stalled("late", *words), tenant.stalled("early", *words))


async def _slow(tenant: Tenant) -> None:
    with pytest.raises(Refused, match="write at most 24h"):
        await tenant.creates("forever", tuning={"mode": "Automatic", "strategy": {**QUICK, "warmUp": "9999999h"}})
    # A canary for which there is never room, as the one node has a pod of it already.
    label = {"matchLabels": {SERVICE: "day"}}
    term = {"labelSelector": label, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    template = engine_env(step_base_ms=40, step_per_seq_ms=0.5, startup_seconds=1)
    template["spec"]["affinity"] = apart
    phases = dict.fromkeys(("analysis", "bake", "provisioningDeadline", "dataBudget"), "24h")
    tuning = {"mode": "Automatic", "strategy": QUICK | phases | {"type": "Canary"}}
    await tenant.creates("day", tuning=tuning, podTemplate=template)
    await tenant.play.load("day", CROWD)


async def _holds_a_turn(tenant: Tenant) -> str:
    change = change_of(await tenant.status("day"))
    if change.get("state") != "Provisioning":
        return ""
    return f"9999999h is refused at admission; with 24h its change is Provisioning until {change['deadline'][:16]}Z"


def attacks(*, series: int, objects: int) -> tuple[Attack, ...]:
    """Every attack; `series` is how many one pod exports (B7), `objects` how many large ones there are (B2)."""
    rows: tuple[dict[str, Any], ...] = (
        {
            "number": "B1",
            "what": "a pod template nested 3,000 levels deep",
            "launch": _deep,
            "reported": lambda tenant: tenant.stalled("deep", "InvalidSpec", "nested deeper than 32 levels"),
            "budgets": (JSON_DEPTH,),
        },
        {
            "number": "B2",
            "what": f"{objects} objects of 1.3 MB",
            "launch": partial(_large, objects=objects),
            "reported": partial(_too_large, objects=objects),
            "budgets": (POD_TEMPLATE_BYTES, MANAGED_FIELDS_BYTES),
        },
        {
            "number": "B3",
            "what": "two pod templates with a typo",
            "launch": _typos,
            "reported": lambda tenant: all_of(
                *(tenant.stalled(name, "InvalidSpec", "nodeSelectr") for name in ("typo", "typo-too"))
            ),
        },
        {
            "number": "B4, B12",
            "what": "adopted: a shell line of 200 KB, a number of 5,000 digits",
            "launch": _shell,
            "reported": _unreadable_flags,
            "budgets": (COMMAND_LINE_BYTES,),
        },
        {
            "number": "B5, B12",
            "what": "a crash log of 60 KB in one line, then credentials",
            "launch": _garrulous,
            "reported": _hidden,
            "budgets": (LOG_LINE_BYTES,),
        },
        {
            "number": "B6",
            "what": 'a bucket with le="abc", one without le, a native histogram',
            "launch": _odd,
            "reported": _odd_told,
        },
        {
            "number": "B7",
            "what": f"{series:,} series of one pod",
            "launch": partial(_crowd, series=series),
            "reported": lambda tenant: tenant.told("crowd", "more series than are read"),
            "budgets": (ANSWER_SERIES,),
        },
        {
            "number": "B8",
            "what": "dates in a status at both ends of the calendar",
            "launch": _dates,
            "reported": _odd_dates,
        },
        {
            "number": "B9",
            "what": "phases of 9999999h and of 24h",
            "launch": _slow,
            "reported": _holds_a_turn,
        },
        {
            "number": "B10",
            "what": "a pod template with hostNetwork and hostPID",
            "launch": _hosts,
            "reported": lambda tenant: tenant.stalled("root", "InvalidSpec", "does not allow", "hostNetwork"),
        },
        {
            "number": "B11",
            "what": "another pod's series under a victim's labels; a pod that is scraped every 70 s",
            "launch": _forged,
            "reported": lambda tenant: tenant.told("victim", "report as this engine"),
            "needs_pods": True,
        },
        {
            "number": "B13",
            "what": "adopted: a Deployment of 600 KB, whose pods have the operator's label",
            "launch": _heavy,
            "reported": lambda tenant: tenant.stalled("heavy", "InvalidSpec", "larger than 256 KiB"),
            "budgets": (OBJECT_BYTES,),
        },
    )
    return tuple(Attack(**row) for row in rows)
