"""One run for each write: the operator dies there, and the run ends as if it had not (`make crash-points`).

Each run has a namespace, an operator and a proxy of its own, from the first write about a service to the end of its
change; as many at once as two cores carry. That takes an hour or more, so `make test` has a sample instead:
one run that crashes at every step (`test_faults_of_the_operator`).
How the change ends must not depend on how busy the machine is: the engine refuses to start, or every latency but the
one that the change cures is far inside its objective, and that one falls to a tenth.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest

from e2e import odd_engines
from e2e.api_proxy import Write
from e2e.bed import Bed
from e2e.crashing import Crashes
from e2e.side_by_side import CROWD, QUICK, Play, seats_of, staged
from e2e.stage import MODEL, engine_env, until
from vllm_autotuner.simulation.load import Traffic

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.crash_points]

AT_ONCE: Final = 4
"""Runs at the same time, each with an operator that starts twice: with more of them two cores let waits run out."""
IN_A_TEST: Final = 8
POINTS: Final = 64
"""More than the writes of any of these runs, which the last points have to show."""
PATIENCE: Final = 300.0
SEATS: Final = 4
BRIEF: Final = Traffic(model=MODEL, prompt_tokens=(20, 60), output_tokens=(6, 10))
"""A second for each answer at the steps of `PLAIN`: five times the requests that a verdict needs."""
PLAIN: Final[Mapping[str, Any]] = {
    "podTemplate": engine_env(step_base_ms=100, step_per_seq_ms=0, startup_seconds=1),
    "objectives": {"profile": "Latency", "ttft": {"target": "500ms"}, "tpot": {"target": "5s"}},
    "tuning": {"strategy": QUICK | {"analysis": "1m"}},
}
"""Steps that are as long with any batch, against which the cores' other work is little, and an objective for them that
nothing here misses: only the queue counts, and with twice the seats there is none. Twice the usual time for a verdict,
for windows that a busy machine leaves without data."""


@dataclass(frozen=True, kw_only=True)
class End:
    """What a run leaves behind."""

    outcomes: tuple[str, ...]
    seats: int
    created: Mapping[str, int]
    """How many objects of each kind there are, or were: nothing of these runs is deleted."""
    generation: int
    """Of the Deployment: how often it was made another one."""
    budget: int
    remembered: tuple[str, ...]
    told: Mapping[str, int]
    """Of the start and the end of a change."""


@dataclass(frozen=True, kw_only=True)
class Story:
    engine: Mapping[str, Any]
    """What its spec says beside the seats."""
    end: End


STORIES: Final = {
    "success": Story(
        engine={},
        end=End(
            outcomes=("Succeeded",),
            seats=2 * SEATS,
            created={"deployments": 1, "services": 1, "replicasets": 2},
            generation=2,
            budget=1,
            remembered=(),
            told={"ChangeStarted": 1, "ChangeSucceeded": 1},
        ),
    ),
    "rollback": Story(
        engine={"image": odd_engines.image("refusing")},
        end=End(
            outcomes=("RolledBack",),
            seats=SEATS,
            created={"deployments": 1, "services": 1, "replicasets": 2},
            generation=3,
            budget=1,
            remembered=("maxNumSeqs=8",),
            told={"ChangeStarted": 1, "ChangeRollingBack": 1, "ChangeRolledBack": 1},
        ),
    ),
}


@dataclass(slots=True)
class Point:
    """The k-th write of an operator."""

    number: int
    """From 1 on; 0 is never."""
    writes: int = 0

    def due(self, write: Write) -> bool:
        """Whether this is it; the lease is renewed by the clock and does not count."""
        if "/leases" in write.path:
            return False
        self.writes += 1
        return self.writes == self.number


async def run_with_a_crash(bed: Bed, *, story: str, point: int, answered: bool) -> tuple[End, bool]:
    """Play one run; return how it ended, and whether there was a write to die at."""
    namespace = f"point-{story}-{'late' if answered else 'early'}-{point}"
    async with staged(bed, namespace) as play:
        play.stage.stop_operator()
        crash = Crashes(play, answered, Point(point).due)
        async with crash.proxy() as proxy:
            crash.start_operator_behind(proxy)
            await play.serves("chat", engine=STORIES[story].engine, **PLAIN)
            await play.stage.load_on("chat", clients=CROWD, traffic=BRIEF)
            entry = await play.finished("chat", seconds=PATIENCE)
            await until("its end is told", partial(play.events, "chat", f"Change{entry['outcome']}"), seconds=PATIENCE)
            await play.rolled_out("chat", seats=STORIES[story].end.seats)
            await crash.over()
            play.stage.stop_operator()
        play.served_all_along("chat")
        return await end_of(play), crash.came


async def end_of(play: Play) -> End:
    """What there is now."""
    stage = play.stage
    status, deployment = await play.status("chat"), await stage.deployment("chat")
    [seats] = {seats_of(pod) for pod in await stage.pods("chat")}
    kinds = {"deployments": "/apis/apps/v1", "services": "/api/v1", "replicasets": "/apis/apps/v1"}
    own = {kind: await stage.get(f"{api}/namespaces/{stage.namespace}/{kind}") for kind, api in kinds.items()}
    created = {kind: len(found["items"]) for kind, found in own.items()}
    told = Counter(event["reason"] for event in await stage.events("chat"))
    ends = ("ChangeStarted", "ChangeSucceeded", "ChangeRollingBack", "ChangeRolledBack")
    return End(
        outcomes=tuple(entry["outcome"] for entry in status["history"]),
        seats=seats or 0,
        created=created,
        generation=deployment["metadata"]["generation"],
        budget=status["budget"]["changesToday"],
        remembered=tuple(one["candidate"] for one in status.get("failureMemory", [])),
        told={reason: told[reason] for reason in ends if told[reason]},
    )


@pytest.mark.parametrize("first", range(1, POINTS + 1, IN_A_TEST), ids=lambda first: f"{first}-{first + IN_A_TEST - 1}")
@pytest.mark.parametrize("answered", [False, True], ids=["before the answer", "after the answer"])
@pytest.mark.parametrize("story", STORIES)
async def test_killed_at_this_write_it_ends_as_undisturbed(
    bed: Bed, engines: None, story: str, answered: bool, first: int
) -> None:
    places, wrong, came = asyncio.Semaphore(AT_ONCE), dict[int, object](), dict[int, bool]()

    async def one(point: int) -> None:
        async with places:
            if not all(came.values()):
                return  # the run has fewer writes
            try:
                end, came[point] = await run_with_a_crash(bed, story=story, point=point, answered=answered)
            except (Exception, ExceptionGroup) as error:  # told with its point, beside the others
                wrong[point] = error
            else:
                if end != STORIES[story].end:
                    wrong[point] = end

    await asyncio.gather(*(one(point) for point in range(first, first + IN_A_TEST)))
    assert not wrong, dict(sorted(wrong.items()))
    if first + IN_A_TEST > POINTS:
        assert not all(came.values()), "there are more writes than points"


@pytest.mark.parametrize("story", STORIES)
async def test_undisturbed(bed: Bed, engines: None, story: str) -> None:
    end, came = await run_with_a_crash(bed, story=story, point=0, answered=False)
    assert (end, came) == (STORIES[story].end, False)
