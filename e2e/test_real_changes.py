"""Changes of the real vLLM, by the operator as a process of its own: what helps is kept, what the engine refuses is
understood, undone and not tried again; and meanwhile the pods that serve stay as they are.

Apart from `test_real_engine`, which asks the engine alone. Runs only where it is installed
(`python -m e2e.real_engine_command install`). One replica and one canary, which the spec asks for: two engines find
room where other work is done as well.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.bed import DEFAULT_IMAGES, Bed
from e2e.monitor import PROMOTED
from e2e.real_engine import RealEngine, image_row
from e2e.real_service import (
    LONG,
    NAME,
    STRATEGY,
    ended,
    intend,
    logs,
    refused,
    remembered,
    serving,
    stable,
    started,
    untouched_since,
    verified,
    written,
)
from e2e.short_of_memory import healed_by_a_shorter_context
from e2e.side_by_side import Play, change_of, staged
from e2e.stage import ENGINE_IMAGE, MODEL, condition, until
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.engine.startup_log import StartupReason
from vllm_autotuner.simulation.load import Traffic

pytestmark = pytest.mark.vllm

NARROW: Final = f"{ENGINE_IMAGE}-narrow"
"""An image whose entry point computes at most six tokens in a step: no flag of the pod tells, and eight seats are too
many."""
SLOW: Final = {"ttft": {"target": "5s"}, "tpot": {"target": "1ms"}}
"""Tokens of a millisecond, which no batch of this engine meets: a larger degree is all that is left to try."""
ACCELERATOR: Final = {"product": "NVIDIA-H100-80GB-HBM3"}
"""What the bed's node calls its devices. The engine does not know of them."""
LARGE: Final = 2816
"""Of 704 MiB: what another degree leaves of a smaller pool is too close to tell (`kv_capacity.FIXED_SPREAD_GIB`)."""
SEATS: Final = {"maxNumSeqs": {"min": 2, "max": 8}, "budget": {"changesPerDay": 1}}
LONG_ANSWERS: Final = Traffic(model=MODEL, prompt_tokens=(50, 200), output_tokens=(100, 160))
"""Which fill a small pool, and are short enough that a pod ends the 50 of a verdict in the minute of a trial."""
DECODING: Final = Traffic(model=MODEL, prompt_tokens=(5, 10), output_tokens=(20, 30))
WIDE: Final = "12s"
"""A window in which enough requests end to tell how late their first tokens are: in the usual 6 s it is a dozen."""
FULL: Final = ("KVCacheSaturated", "PreemptionThrash")


TAKES_FP8: Final = "avx512" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
"""The engine asks the same of a CPU (`refused` has its words)."""


@asynccontextmanager
async def short_of_cache(node: Bed, namespace: str, *, catalogue: Path, cooldown: str) -> AsyncIterator[Play]:
    """A service whose pool is too small, and whose owner lets its values take half of the room."""
    tuning = {"kvCacheDtype": {"allowed": ["auto", "fp8"]}, "maxNumSeqs": None, "cooldown": cooldown}
    async with serving(
        node, namespace, clients=16, engine={"maxNumSeqs": 64}, blocks=20, tuning=tuning, traffic=LONG_ANSWERS,
        accelerator=ACCELERATOR, operator=["--catalogue", str(catalogue)],
    ) as play:  # fmt: skip
        yield play


@pytest.fixture(scope="module")
def node(real_engine: RealEngine, bed: Bed) -> Iterator[Bed]:
    """The bed, with the real engine behind vLLM's image, and a pool as large as the manifest says."""
    row = image_row(real_engine, kv_blocks=None)
    narrow = {**row, "match": "-narrow$", "append": [*row["append"], "--max-num-batched-tokens", "6"]}  # type: ignore[misc]
    bed.set_images([narrow, row, *DEFAULT_IMAGES])
    yield bed
    bed.set_images(DEFAULT_IMAGES)


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    """What an admin adds to the tables for a model of his own."""
    return written(tmp_path / "catalogue.yaml")


async def test_a_canary_that_a_user_takes_back_leaves_the_service_as_it_was(node: Bed) -> None:
    # What is half way to a declined value may be tried after the cooldown.
    async with serving(node, "taken-back", clients=16, engine={"maxNumSeqs": 4}, tuning={"cooldown": "1h"}) as play:
        before = await stable(play)
        await started(play)
        change = await play.change_is(NAME, "Analyzing", seconds=LONG)
        assert (change["knob"], change["fromValue"], change["toValue"], change["strategy"]) == (
            "maxNumSeqs", "4", "8", "Canary",
        )  # fmt: skip
        assert verified(play) == "1 pod reports maxNumSeqs=8 at start-up"
        await play.edit(NAME, annotations={"vllm-autotuner.dev/rollback": "now"})
        entry = await play.finished(NAME)
        assert (entry["outcome"], entry["reason"]) == ("RolledBack", "a user requested a rollback")
        await untouched_since(before, play)
        assert remembered(await play.status(NAME)) == ["maxNumSeqs=8"]


async def test_a_canary_that_does_better_is_followed_by_the_service(node: Bed) -> None:
    # Each pod gets half of the requests: two seats are too few for that, and so small a batch is computed beside the
    # other engine on two cores.
    strategy = {"strategy": STRATEGY | {"warmUp": "40s"}, "cooldown": "1h"}
    async with serving(
        node, "followed", clients=8, engine={"maxNumSeqs": 2}, tuning=strategy, operator=["--window", WIDE]
    ) as play:
        before = await stable(play)
        await started(play)
        await play.change_is(NAME, "Analyzing", seconds=LONG)
        assert await stable(play) == before, "the service was touched before the verdict"
        entry = await play.finished(NAME, seconds=LONG)
        assert entry["outcome"] == "Succeeded", entry
        # How far a step goes is told by the step times that were measured here: at least to twice the value.
        seats = int(entry["toValue"])
        assert seats >= 4, entry
        assert entry["before"]["ttftSeconds"] > entry["after"]["ttftSeconds"]
        await play.rolled_out(NAME, seats=seats, seconds=LONG)
        assert all(f"'max_num_seqs': {seats}" in log for log in await logs(play))
        assert play.monitor.course(NAME) == PROMOTED
        assert play.monitor.trials(NAME) == (["canary"], ["canary"])
        assert (await stable(play)).generation == before.generation + 1
        assert play.monitor.fewest_available(NAME) == 1
        play.served_all_along(NAME)
        await play.went_well()


@pytest.mark.fault("T17")
async def test_a_max_num_seqs_above_what_the_engine_takes_is_refused_by_it_and_not_tried_again(node: Bed) -> None:
    engine = {"image": NARROW, "maxNumSeqs": 4}
    async with serving(node, "too-many-seats", clients=14, engine=engine, tuning=SEATS) as play:
        words = "max_num_batched_tokens (6) must be greater than or equal to max_num_seqs (8)."
        await refused(play, "maxNumSeqs=8", StartupReason.INVALID_FLAG, words)

        # Once all clients are back; with fewer in the window the seats are not all that is short.
        def seats_again(found: Mapping[str, Any]) -> bool:
            return bool(found.get("recommendation", {}).get("knob") == "maxNumSeqs")

        status = await play.until(NAME, "other advice", seats_again)
        advice = status["recommendation"]
        assert (advice["recommended"], advice["limitedBy"]) == ("6", "rolled back or declined at 8")


@pytest.mark.skipif(not TAKES_FP8, reason="this CPU takes no fp8 cache: see the next test")
async def test_a_canary_with_fp8_values_starts_is_measured_and_taken_back(node: Bed, catalogue: Path) -> None:
    async with short_of_cache(node, "fp8-taken", catalogue=catalogue, cooldown="1h") as play:
        before = await stable(play)
        await started(play)
        change = await play.change_is(NAME, "Analyzing", seconds=LONG)
        assert (change["knob"], change["toValue"], change["strategy"]) == ("kvCacheDtype", "fp8", "Canary")
        assert verified(play) == "1 pod reports kvCacheDtype=fp8 at start-up"
        await play.edit(NAME, annotations={"vllm-autotuner.dev/rollback": "now"})
        entry = await play.finished(NAME, seconds=LONG)
        assert (entry["outcome"], entry["reason"]) == ("RolledBack", "a user requested a rollback")
        await untouched_since(before, play)
        assert remembered(await play.status(NAME)) == ["kvCacheDtype=fp8"]


@pytest.mark.fault("T17")
@pytest.mark.skipif(TAKES_FP8, reason="this CPU takes an fp8 cache, so that nothing is refused: see the test before")
async def test_fp8_values_on_a_device_without_them_are_refused_and_not_tried_again(node: Bed, catalogue: Path) -> None:
    async with short_of_cache(node, "fp8", catalogue=catalogue, cooldown="1s") as play:
        words = "FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
        await refused(play, "kvCacheDtype=fp8", StartupReason.KV_TYPE_UNSUPPORTED, words)
        # Nothing else holds it back: the cooldown is over, and it is still the same trouble.
        await play.until(NAME, "the same trouble", lambda found: found["diagnosis"]["class"] in FULL)

        # Preemptions come and go in the few seconds of a window, and with them the class.
        async def told() -> bool:
            found = await play.decided_again(NAME, "--catalogue", str(catalogue))
            return "fp8 was rolled back or declined before" in found

        await until("explain tells why fp8 is not tried again", told, seconds=300)
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


async def test_an_engine_that_does_not_start_for_memory_is_healed_by_a_shorter_context(node: Bed) -> None:
    async with staged(node, "too-long") as play:
        await healed_by_a_shorter_context(play, NAME, seconds=LONG)
        await play.went_well()


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
        assert verified(play) == "1 pod reports tensorParallelSize=2 at start-up"
        change = await play.change_is(NAME, "RollingBack", "Promoting", seconds=LONG)
        assert (await stable(play)).pods == before.pods, "the service was touched before the verdict"
        # Two processes on the same cores mostly wait for each other; where others fight for these, they get the larger
        # share and may be the faster. Whatever was measured: a person does not want it.
        if change["state"] == "Promoting":
            await play.edit(NAME, annotations={"vllm-autotuner.dev/rollback": "now"})
        entry = await play.finished(NAME, seconds=LONG)
        assert (entry["outcome"], "after" in entry) == ("RolledBack", True), entry
        assert play.monitor.course(NAME)[:4] == ["Provisioning", "Verifying", "WarmingUp", "Analyzing"]
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
        assert "8 attention heads do not divide by 3" in await play.decided_again(NAME, "--catalogue", str(catalogue))
        await play.ticks(5)
        assert not play.monitor.states(NAME)
        # An admin who describes another model than the one that is served gets it past every check but the engine's.
        play.stage.stop_operator()
        play.stage.start_operator("--catalogue", str(wrong))
        words = "Total number of attention heads (8) must be divisible by tensor parallel size (3)."
        await refused(play, "tensorParallelSize=3", StartupReason.HEADS_NOT_DIVISIBLE, words)
