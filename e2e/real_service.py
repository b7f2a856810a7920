"""A service of one real engine on the bed, and what must be so while something is tried on it.

Apart from the tests that try it (`test_real_changes`), which are then what happens and not how it is watched.
Must not: change anything but what a user, or for `intend` a former leader, could have written.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.bed import Bed
from e2e.side_by_side import Play, change_of, staged
from e2e.stage import MODEL, condition, until
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.api.status import ChangeTarget, Confidence, Measurement
from vllm_autotuner.change.begin import begin
from vllm_autotuner.engine.startup_log import StartupReason
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.simulation.load import Traffic
from vllm_autotuner.workload.labels import STABLE, TRACK
from vllm_autotuner.workload.rendering import rendered_hash

NAME: Final = "chat"
LONG: Final = 600.0
"""Seconds for anything that needs an engine to start: 20 on an idle machine, 200 on one that has other work."""
STRATEGY: Final = {"type": "Canary", "warmUp": "20s", "analysis": "2m", "bake": "4s", "provisioningDeadline": "10m"}
KV_BYTES_PER_BLOCK: Final = 128 * 2 * 4 * 4 * 32 * 2
"""128 tokens of the tiny model: keys and values of 4 layers with 4 KV heads of 32 numbers in 16 bit."""
AMPLE: Final = 256
"""Blocks that no load of these tests fills."""
CHAT: Final = Traffic(model=MODEL, prompt_tokens=(20, 60), output_tokens=(30, 60))
"""Short, so that a verdict has its 50 requests a side in a minute or two also where other work takes the cores."""


@dataclass(frozen=True, slots=True)
class Stable:
    """What must not change while a candidate is tried."""

    generation: int
    pods: frozenset[tuple[str, str, int]]
    """Name, start of the engine and restarts of each pod of the service's own Deployment."""


async def stable(play: Play) -> Stable:
    """The service's own Deployment and its pods."""
    pods = [pod for pod in await play.stage.pods(NAME) if pod["metadata"]["labels"][TRACK] == STABLE]
    containers = [(pod["metadata"]["name"], pod["status"]["containerStatuses"][0]) for pod in pods]
    return Stable(
        generation=(await play.stage.deployment(NAME))["metadata"]["generation"],
        pods=frozenset((name, one["state"]["running"]["startedAt"], one["restartCount"]) for name, one in containers),
    )


@asynccontextmanager
async def serving(
    bed: Bed,
    namespace: str,
    *,
    clients: int,
    engine: Mapping[str, Any],
    blocks: int = AMPLE,
    tuning: Mapping[str, Any],
    traffic: Traffic = CHAT,
    operator: Sequence[str] = (),
    **spec: Any,
) -> AsyncIterator[Play]:
    """A service of one real engine with so many KV blocks, Ready and under load."""
    async with staged(bed, namespace, operator=operator) as play:
        pool = f"--kv-cache-memory-bytes={blocks * KV_BYTES_PER_BLOCK}"
        await play.apply(
            NAME,
            engine={"maxModelLen": 2048, "args": [pool]} | dict(engine),
            podTemplate={"spec": {"terminationGracePeriodSeconds": 5}},
            tuning={"strategy": STRATEGY, "cooldown": "1s"} | dict(tuning),
            **({"objectives": {"ttft": {"target": "500ms"}, "tpot": {"target": "5s"}}} | spec),
        )
        await play.until(NAME, "Ready", lambda status: condition(status, "Ready") == "True", seconds=LONG)
        await play.stage.load_on(NAME, clients=clients, traffic=traffic)
        yield play


async def logs(play: Play) -> list[str]:
    """What the engines of all its pods wrote."""
    names = [pod["metadata"]["name"] for pod in await play.stage.pods(NAME)]
    return [play.stage.bed.kubectl("logs", "-n", play.stage.namespace, name) for name in names]


async def untouched_since(before: Stable, play: Play) -> None:
    """Check that the service served all along with the same pods, and that the trial is gone."""
    await until(
        "the canary is deleted", lambda: play.monitor.trials(NAME)[1] == play.monitor.trials(NAME)[0], seconds=300
    )
    assert set(play.monitor.trials(NAME)[0]) == {"canary"}
    assert await stable(play) == before
    assert play.monitor.fewest_available(NAME) == 1
    play.served_all_along(NAME)
    await play.went_well()


def verified(play: Play) -> str:
    """How it was found out that the canary's engine really has the value."""
    changes = map(change_of, play.monitor.statuses(NAME))
    return next(str(each["stateReason"]) for each in changes if each.get("state") == "WarmingUp")


def remembered(status: Mapping[str, Any]) -> list[str]:
    """The candidates that failed."""
    return [each["candidate"] for each in status.get("failureMemory", [])]


async def started(play: Play) -> Mapping[str, Any]:
    """Wait until a change has begun and its canary has started, or failed to; return the change."""
    load = play.stage.loads[NAME]
    await play.change_is(NAME, "Provisioning", seconds=LONG)
    # The candidate needs the cores, or starts for minutes. Nothing is judged now, and one client notices as well.
    crowd, load.clients = load.clients, 1
    status = await play.until(
        NAME, "the canary has started", lambda found: change_of(found).get("state") != "Provisioning", seconds=LONG
    )
    load.clients = crowd
    return change_of(status)


async def refused(play: Play, candidate: str, reason: StartupReason, words: str) -> None:
    """Wait until the engine has refused this candidate in these words, and check all that must follow from that."""
    before = await stable(play)
    await started(play)
    entry = await play.finished(NAME, seconds=LONG)
    assert f"{entry['knob']}={entry['toValue']}" == candidate
    assert entry["outcome"] == "RolledBack"
    assert entry["reason"].startswith(f"the engine does not start: {reason.value}: {words}"), entry["reason"]
    assert play.monitor.course(NAME) == ["Provisioning", "RollingBack"]
    await untouched_since(before, play)
    (note,) = await play.events(NAME, "ChangeRolledBack")
    assert words in note
    status = await play.status(NAME)
    assert remembered(status) == [candidate]
    assert words in status["failureMemory"][0]["reason"]


async def intend(play: Play, knob: Knob, value: int) -> None:
    """Write into the status what a leader writes before it touches anything, of a change that none begins by itself."""
    service = parse_service(await play.stage.service(NAME))
    assert isinstance(service, VLLMService)
    now = datetime.now(UTC)
    proposal = Proposal(
        knob=knob, current=None, value=value, target=ChangeTarget.THROUGHPUT, reason="a test wants it",
        confidence=Confidence.HIGH,
    )  # fmt: skip
    change = begin(
        proposal, service=service, status=service.status, hash_of=partial(rendered_hash, service),
        measured=[Measurement(at=now)], replicas=1, epoch=1, now=now,
    )  # fmt: skip
    await play.edit_status(NAME, {"activeChange": to_wire(change)})


async def ended(play: Play, count: int) -> Mapping[str, Any]:
    """Wait for the end of so many changes; return the last one's entry in the history."""
    status = await play.until(
        NAME,
        f"{count} changes that are over",
        lambda found: len(found["history"]) == count and not found.get("activeChange"),
        seconds=LONG,
    )
    entry: Mapping[str, Any] = status["history"][-1]
    assert entry["outcome"] in ("RolledBack", "Succeeded")
    return entry


def written(path: Path, **config: int) -> Path:
    """A catalogue that describes the model, but for what is named."""
    true = {
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 256,
        "intermediate_size": 512, "vocab_size": 2048, "max_position_embeddings": 8192,
    }  # fmt: skip
    path.write_text(yaml.safe_dump({"models": {MODEL: true | config}}), encoding="utf-8")
    return path
