"""Changes of the real vLLM, by the operator as a process of its own: what helps is kept, what the engine refuses is
understood, undone and not tried again; and meanwhile the pods that serve stay as they are.

Apart from `test_real_engine`, which asks the engine alone. Runs only where it is installed (`python -m e2e.real_engine
install`). One replica and one canary, which the spec asks for: two engines find room where other work is done as well.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.bed import DEFAULT_IMAGES, Bed
from e2e.real_engine import RealEngine, image_row
from e2e.side_by_side import Play, change_of, staged
from e2e.stage import ENGINE_IMAGE, MODEL, condition, until
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.api.status import ChangeTarget, Confidence, Measurement
from vllm_autotuner.change.begin import begin
from vllm_autotuner.control.looking import hash_of
from vllm_autotuner.engine.startup_failure import StartupReason
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.simulation.load import Traffic
from vllm_autotuner.workload.labels import STABLE, TRACK

pytestmark = pytest.mark.vllm

NAME: Final = "chat"
LONG: Final = 600.0
"""Seconds for anything that needs an engine to start: 20 on an idle machine, 200 on one that has other work."""
STRATEGY: Final = {"type": "Canary", "warmUp": "2s", "analysis": "2m", "bake": "4s", "provisioningDeadline": "10m"}
KV_BYTES_PER_BLOCK: Final = 128 * 2 * 4 * 4 * 32 * 2
"""128 tokens of the tiny model: keys and values of 4 layers with 4 KV heads of 32 numbers in 16 bit."""
NARROW: Final = f"{ENGINE_IMAGE}-narrow"
"""An image whose entry point computes at most six tokens in a step: no flag of the pod tells, and eight seats are too
many."""
SLOW: Final = {"ttft": {"target": "5s"}, "tpot": {"target": "1ms"}}
"""Tokens of a millisecond, which no batch of this engine meets: a larger degree is all that is left to try."""
ACCELERATOR: Final = {"product": "NVIDIA-H100-80GB-HBM3"}
"""What the bed's node calls its devices. The engine does not know of them."""
AMPLE: Final = 256
"""Blocks that no load of these tests fills."""
LARGE: Final = 2816
"""Of 704 MiB: what another degree leaves of a smaller pool is too close to tell (`kv_capacity.FIXED_SPREAD_GIB`)."""
SEATS: Final = {"maxNumSeqs": {"min": 2, "max": 8}, "budget": {"changesPerDay": 1}}
CHAT: Final = Traffic(model=MODEL, prompt_tokens=(20, 60), output_tokens=(30, 60))
"""Short, so that a verdict has its 50 requests a side in a minute or two also where other work takes the cores."""
LONG_ANSWERS: Final = Traffic(model=MODEL, prompt_tokens=(50, 200), output_tokens=(200, 300))
"""Which fill a small pool."""
DECODING: Final = Traffic(model=MODEL, prompt_tokens=(5, 10), output_tokens=(20, 30))
FULL: Final = ("KVCacheSaturated", "PreemptionThrash")


@pytest.fixture(scope="module")
def node(real_engine: RealEngine, bed: Bed) -> Iterator[Bed]:
    """The bed, with the real engine behind vLLM's image, and a pool as large as the manifest says."""
    row = image_row(real_engine, kv_blocks=None)
    narrow = {**row, "match": "-narrow$", "append": [*row["append"], "--max-num-batched-tokens", "6"]}  # type: ignore[misc]
    bed.set_images([narrow, row, *DEFAULT_IMAGES])
    yield bed
    bed.set_images(DEFAULT_IMAGES)


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
            **({"objectives": {"ttft": {"target": "500ms"}, "tpot": {"target": "500ms"}}} | spec),
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
        "the canary is deleted", lambda: play.monitor.trials(NAME)[1] == play.monitor.trials(NAME)[0], seconds=60
    )
    assert set(play.monitor.trials(NAME)[0]) == {"canary"}
    assert await stable(play) == before
    assert play.monitor.fewest_available(NAME) == 1
    play.served_all_along(NAME)
    await play.went_well()


def course(play: Play) -> list[str]:
    """The states of its changes, in order. A machine that is busy for a moment may hold one, and let it go on."""
    states = [state for state in play.monitor.states(NAME) if state != "Held"]
    return [state for state, before in zip(states, [None, *states], strict=False) if state != before]


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
    assert course(play) == ["Provisioning", "RollingBack"]
    await untouched_since(before, play)
    (note,) = await play.events(NAME, "ChangeRolledBack")
    assert words in note
    status = await play.status(NAME)
    assert remembered(status) == [candidate]
    assert words in status["failureMemory"][0]["reason"]


async def explained(play: Play, *arguments: str) -> str:
    """What `vllm-autotuner explain` says of a decision that is made again on the metrics."""
    bed = play.stage.bed
    command = [sys.executable, "-m", "vllm_autotuner", "explain", NAME, "-n", play.stage.namespace, "-o", "json"]
    source = ["--kubeconfig", str(bed.admin_kubeconfig), "--prometheus", bed.prometheus_url]
    told = await asyncio.to_thread(
        subprocess.run, [*command, *source, *arguments], capture_output=True, text=True, check=True
    )
    return json.dumps(json.loads(told.stdout), ensure_ascii=False)


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
        proposal, service=service, status=service.status, hash_of=partial(hash_of, service),
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


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    """What an admin adds to the tables for a model of his own."""
    return written(tmp_path / "catalogue.yaml")


async def test_a_canary_that_a_user_takes_back_is_tried_again_does_better_and_is_followed(node: Bed) -> None:
    async with serving(node, "followed", clients=14, engine={"maxNumSeqs": 4}, tuning={}) as play:
        before = await stable(play)
        await started(play)
        change = await play.change_is(NAME, "Analyzing", seconds=LONG)
        assert (change["knob"], change["fromValue"], change["toValue"], change["strategy"]) == (
            "maxNumSeqs", "4", "8", "Canary",
        )  # fmt: skip
        assert verified(play) == "1 pod(s) report maxNumSeqs=8 in their start-up log"
        await play.edit(NAME, annotations={"vllm-autotuner.dev/rollback": "now"})
        entry = await play.finished(NAME)
        assert (entry["outcome"], entry["reason"]) == ("RolledBack", "a person asked for a rollback")
        await untouched_since(before, play)
        assert not remembered(await play.status(NAME))

        await started(play)
        await play.change_is(NAME, "Analyzing", seconds=LONG)
        assert await stable(play) == before, "the service was touched before the verdict"
        entry = await ended(play, 2)
        assert (entry["outcome"], entry["toValue"]) == ("Succeeded", "8"), entry
        assert entry["before"]["ttftSeconds"] > entry["after"]["ttftSeconds"]
        await play.rolled_out(NAME, seats=8)
        assert all("'max_num_seqs': 8" in log for log in await logs(play))
        tried = ["Provisioning", "Verifying", "WarmingUp", "Analyzing"]
        assert course(play) == [*tried, "RollingBack", *tried, "Promoting", "Baking"]
        assert play.monitor.trials(NAME) == (["canary", "canary"], ["canary", "canary"])
        assert (await stable(play)).generation == before.generation + 1
        assert play.monitor.fewest_available(NAME) == 1
        play.served_all_along(NAME)
        await play.went_well()


@pytest.mark.fault("T17")
async def test_more_seats_than_the_engine_takes_are_refused_by_it_and_not_tried_again(node: Bed) -> None:
    engine = {"image": NARROW, "maxNumSeqs": 4}
    async with serving(node, "too-many-seats", clients=14, engine=engine, tuning=SEATS) as play:
        words = "max_num_batched_tokens (6) must be greater than or equal to max_num_seqs (8)."
        await refused(play, "maxNumSeqs=8", StartupReason.INVALID_FLAG, words)
        status = await play.until(NAME, "other advice", lambda found: found.get("recommendation"))
        advice = status["recommendation"]
        assert (advice["recommended"], advice["limitedBy"]) == ("6", "rolled back before at 8")


@pytest.mark.fault("T17")
async def test_fp8_values_on_a_device_without_them_are_refused_and_not_tried_again(node: Bed, catalogue: Path) -> None:
    if "avx512" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this CPU takes an fp8 cache: nothing is refused")
    tuning = {"kvCacheDtype": {"allowed": ["auto", "fp8"]}, "maxNumSeqs": None}
    async with serving(
        node, "fp8", clients=12, engine={"maxNumSeqs": 64}, blocks=20, tuning=tuning, traffic=LONG_ANSWERS,
        accelerator=ACCELERATOR, operator=["--catalogue", str(catalogue)],
    ) as play:  # fmt: skip
        words = "FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
        await refused(play, "kvCacheDtype=fp8", StartupReason.KV_TYPE_UNSUPPORTED, words)
        # Nothing else holds it back: the cooldown is over, and it is still the same trouble.
        await play.until(NAME, "the same trouble", lambda found: found["diagnosis"]["class"] in FULL)
        assert "fp8 was rolled back before" in await explained(play, "--catalogue", str(catalogue))
        await play.ticks(5)
        status = await play.status(NAME)
        assert (len(status["history"]), change_of(status)) == (1, {})


@pytest.mark.fault("T17", "T18")
async def test_a_longer_context_or_an_odd_degree_that_only_the_engine_refuses_is_undone(node: Bed) -> None:
    """The planner proposes neither. The intent is written as a leader writes it before he acts."""
    bounds = {"maxModelLen": {"min": 256, "max": 131_072}, "tensorParallelSize": {"allowed": [1, 3]}}
    tuning = {"mode": "Approve", "maxNumSeqs": None} | bounds
    async with serving(node, "longer-context", clients=2, engine={"maxNumSeqs": 4}, blocks=20, tuning=tuning) as play:
        before = await stable(play)
        await intend(play, Knob.MAX_MODEL_LEN, 100_000)
        words = "User-specified max_model_len (100000) is greater than the derived max_model_len"
        await refused(play, "maxModelLen=100000", StartupReason.LENGTH_OVER_MODEL, words)

        await intend(play, Knob.TENSOR_PARALLEL_SIZE, 3)
        entry = await ended(play, 2)
        assert entry["reason"] == (
            "the engine does not start: HeadsNotDivisible: "
            "Total number of attention heads (8) must be divisible by tensor parallel size (3)."
        )
        await intend(play, Knob.MAX_MODEL_LEN, 4096)
        entry = await ended(play, 3)
        assert entry["reason"].startswith("the engine does not start: InsufficientKVCache: To serve at least one")
        status = await play.status(NAME)
        refusals, lack = status["failureMemory"][:2], status["failureMemory"][2]
        assert all("retryAfter" in each for each in refusals), refusals
        assert (lack["infeasible"]["maxModelLen"], lack.get("retryAfter")) == (4096, None)
        assert condition(status, "CircuitOpen") == "True"
        await untouched_since(before, play)


async def test_a_larger_degree_starts_is_measured_and_taken_back(node: Bed, catalogue: Path) -> None:
    tuning = {"tensorParallelSize": {"allowed": [1, 2]}, "maxNumSeqs": None}
    async with serving(
        node, "larger-degree", clients=2, engine={"maxNumSeqs": 4}, blocks=LARGE, tuning=tuning, objectives=SLOW,
        traffic=DECODING, accelerator=ACCELERATOR, operator=["--catalogue", str(catalogue)],
    ) as play:  # fmt: skip
        before = await stable(play)
        await started(play)
        change = await play.change_is(NAME, "Analyzing", seconds=LONG)
        assert (change["knob"], change["toValue"]) == ("tensorParallelSize", "2")
        assert verified(play) == "1 pod(s) report tensorParallelSize=2 in their start-up log"
        change = await play.change_is(NAME, "RollingBack", "Promoting", seconds=LONG)
        assert (await stable(play)).pods == before.pods, "the service was touched before the verdict"
        # Two processes on the same cores mostly wait for each other; where others fight for these, they get the larger
        # share and may be the faster. Whatever was measured: a person does not want it.
        if change["state"] == "Promoting":
            await play.edit(NAME, annotations={"vllm-autotuner.dev/rollback": "now"})
        entry = await play.finished(NAME, seconds=LONG)
        assert (entry["outcome"], entry["windowsGood"] + entry["windowsBad"] > 0) == ("RolledBack", True), entry
        assert course(play)[:4] == ["Provisioning", "Verifying", "WarmingUp", "Analyzing"]
        play.served_all_along(NAME)
        await play.went_well()


@pytest.mark.fault("T17")
async def test_a_degree_that_does_not_divide_the_heads_is_never_tried_where_they_are_known(
    node: Bed, catalogue: Path, tmp_path: Path
) -> None:
    wrong = written(tmp_path / "wrong.yaml", num_attention_heads=12, num_key_value_heads=6)
    tuning = {"tensorParallelSize": {"allowed": [2, 3]}, "maxNumSeqs": None}
    async with serving(
        node, "odd-degree", clients=2, engine={"maxNumSeqs": 4, "tensorParallelSize": 2}, blocks=LARGE, tuning=tuning,
        objectives=SLOW, traffic=DECODING, accelerator=ACCELERATOR, operator=["--catalogue", str(catalogue)],
    ) as play:  # fmt: skip
        await play.until(NAME, "slow", lambda found: found["diagnosis"]["class"] == "DecodeBandwidthBound")
        assert "8 attention heads do not divide by 3" in await explained(play, "--catalogue", str(catalogue))
        await play.ticks(5)
        assert not play.monitor.states(NAME)
        # An admin who describes another model than the one that is served gets it past every check but the engine's.
        play.stage.stop_operator()
        play.stage.start_operator("--catalogue", str(wrong))
        words = "Total number of attention heads (8) must be divisible by tensor parallel size (3)."
        await refused(play, "tensorParallelSize=3", StartupReason.HEADS_NOT_DIVISIBLE, words)
