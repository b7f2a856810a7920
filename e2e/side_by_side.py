"""Tests that play at the same time: each waits for minutes and works for moments.

`@side_by_side(stage=...)` turns a scene into a test. The first of them in a run opens the stages of all that were
selected and starts their scenes, each with services of its own: a number of them at once, and the next one whenever
one ends. A test then waits for its own scene and fails with it.
Apart from the stage, because a scene also needs a monitor, and what must always be so is checked at its end.
Must not: let a scene touch what another one depends on. Who ends the operator or Prometheus needs a stage of his own.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.bed import NODE, Bed, import_path
from e2e.monitor import Monitor
from e2e.node_client import NodeClient
from e2e.operator_account import vllm_service
from e2e.stage import ENGINE_IMAGE, MODEL, NotSeen, Stage, condition, engine_env, until
from vllm_autotuner.engine.flags import EngineFlags, parse_flags
from vllm_autotuner.simulation.load import Load, Traffic

TALK: Final = Traffic(model=MODEL, prompt_tokens=(20, 60), output_tokens=(20, 40))
QUICK: Final = {"warmUp": "2s", "analysis": "30s", "bake": "2s", "provisioningDeadline": "10m"}
"""Phases of seconds; the analysis then ends after six windows."""
PATIENCE: Final = 300.0
"""Seconds for anything that needs a rollout or a verdict; over ten times what it takes on an idle machine."""
CROWD: Final = 9
"""Clients that talk at once: twice the seats of `capped`, and one that is between two requests at any moment."""


AT_ONCE: Final = 10
"""Scenes under way at the same time: each is a service or two with engines and load. With all 46 of them two cores were
so busy that waits of minutes ran out; ten leave room for the tests that run beside (`whole_run`)."""


class Refused(AssertionError):
    """The API server did not take what a user wrote; the message is its own."""


class Play:
    """One scene's view of the stage: its services, what they say, and whether all went as it always must."""

    def __init__(self, stage: Stage, monitor: Monitor) -> None:
        self.stage = stage
        self.monitor = monitor
        self.names: list[str] = []

    async def serves(self, name: str, *, clients: int = 0, **spec: Any) -> None:
        """Apply a service like `capped` with these differences, wait until it is Ready, and put load on it."""
        await self.apply(name, **spec)
        await self.until(name, "Ready", lambda status: condition(status, "Ready") == "True")
        if clients:
            await self.load(name, clients)

    async def apply(self, name: str, **spec: Any) -> None:
        """Create a service like `capped` with these differences."""
        self.names.append(name)
        await self.write("POST", "", capped(self.stage.namespace, name, **spec))

    async def load(self, name: str, clients: int = 0, *, rate: float = 0.0) -> Load:
        """Let so many clients talk to it, and so many people per second come with a request and go."""
        return await self.stage.load_on(name, clients=clients, rate=rate, traffic=TALK)

    async def until(
        self, name: str, what: str, holds: Callable[[Mapping[str, Any]], object], *, seconds: float = PATIENCE
    ) -> Mapping[str, Any]:
        """Return the first status from now on about which `holds` is true. Raises NotSeen with what there is."""
        try:
            return await self.monitor.when(name, holds, seconds=seconds)
        except TimeoutError:
            found = brief(await self.status(name))
            raise NotSeen(f"{name}: {what}: not within {seconds:.0f} s; its status: {found}") from None

    async def change_is(self, name: str, *states: str, seconds: float = PATIENCE) -> Mapping[str, Any]:
        """Wait until its change is in one of these states, and return the change."""
        status = await self.until(
            name,
            f"a change in {'/'.join(states)}",
            lambda found: change_of(found).get("state") in states,
            seconds=seconds,
        )
        return change_of(status)

    async def finished(self, name: str, *, seconds: float = PATIENCE) -> Mapping[str, Any]:
        """Wait until its change is over, and return the entry in its history."""
        status = await self.until(
            name,
            "a finished change",
            lambda found: found.get("history") and not found.get("activeChange"),
            seconds=seconds,
        )
        assert len(status["history"]) == 1, status["history"]
        entry: Mapping[str, Any] = status["history"][0]
        return entry

    async def ticks(self, count: int) -> None:
        """Let so many ticks pass, in which something must not happen: an absence cannot be waited for."""
        await asyncio.sleep(count * float(self.stage.interval.removesuffix("s")))

    async def status(self, name: str) -> Mapping[str, Any]:
        """What the API server has now."""
        return await self.stage.status(name)

    async def edit(self, name: str, *, annotations: Mapping[str, str | None] | None = None, **spec: Any) -> None:
        """Edit a VLLMService as a user does."""
        body: dict[str, Any] = {"spec": spec} if spec else {}
        if annotations:
            body["metadata"] = {"annotations": dict(annotations)}
        await self.write("PATCH", name, body)

    async def edit_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Edit its status by hand, as nobody should."""
        await self.write("PATCH", f"{name}/status", {"status": dict(status)})

    async def kill(self, name: str) -> None:
        """Have the engine of each pod die, as by a segmentation fault: exit code 137, and it is started again."""
        self.monitor.expect_harm(name)
        node = NodeClient.of(await self.stage.get(f"/api/v1/nodes/{NODE}"))
        for pod in await self.stage.pods(name):
            await asyncio.to_thread(node.kill, self.stage.namespace, pod["metadata"]["name"])

    async def delete(self, name: str) -> None:
        """Delete the VLLMService."""
        await self.write("DELETE", name, None)

    async def write(self, method: str, path: str, body: Mapping[str, Any] | None) -> None:
        """Send a write about a VLLMService, patches as merge patches. Raises Refused with the server's words."""
        media = "merge-patch+json" if method == "PATCH" else "json"
        answer = await self.stage.api.request(
            method,
            f"/apis/vllm-autotuner.dev/v1alpha1/namespaces/{self.stage.namespace}/vllmservices/{path}".rstrip("/"),
            json=body,
            headers={"Content-Type": f"application/{media}"},
        )
        if not answer.is_success:
            raise Refused(answer.json()["message"])

    async def flags(self, name: str) -> EngineFlags:
        """What the Deployment asks the engine for."""
        template = (await self.stage.deployment(name))["spec"]["template"]
        return parse_flags(template["spec"]["containers"][0]["args"])

    async def exported(self, name: str, *, kubeconfig: Path) -> str:
        """What `vllm-autotuner export` writes about it for whoever has this kubeconfig. On a busy machine a
        recommendation may go for a moment.
        """
        command = [sys.executable, "-m", "vllm_autotuner", "export", name, "-n", self.stage.namespace]

        async def written() -> str | None:
            process = await asyncio.create_subprocess_exec(
                *(*command, "--kubeconfig", str(kubeconfig)),
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": import_path()},
            )
            output, _ = await process.communicate()
            return output.decode() if process.returncode == 0 else None

        patch: str = await until(f"an export of {name}", written, seconds=PATIENCE, every=2)
        return patch

    async def explained(self, name: str, *arguments: str) -> str:
        """What `vllm-autotuner explain` says, as JSON."""
        command = [sys.executable, "-m", "vllm_autotuner", "explain", name, "-n", self.stage.namespace, "-o", "json"]
        source = ["--kubeconfig", str(self.stage.bed.admin_kubeconfig)]
        told = await asyncio.to_thread(
            subprocess.run, [*command, *source, *arguments], capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
        return json.dumps(json.loads(told.stdout), ensure_ascii=False)

    async def decided_again(self, name: str, *arguments: str) -> str:
        """The same of a decision that is made again on the metrics."""
        return await self.explained(name, "--prometheus", self.stage.bed.prometheus_url, *arguments)

    async def rolled_out(self, name: str, *, seats: int, seconds: float = PATIENCE) -> list[Mapping[str, Any]]:
        """Wait until every pod of it serves with these seats and no other is left; return the pods."""

        async def probe() -> list[dict[str, Any]]:
            pods = await self.stage.pods(name)
            ready = await self.stage.ready_pods(name)
            right = [pod for pod in ready if seats_of(pod) == seats]
            return right if right and len(right) == len(pods) else []

        found: list[Mapping[str, Any]] = await until(f"{name} serves with {seats} seats", probe, seconds=seconds)
        return found

    async def events(self, name: str, reason: str) -> list[str]:
        """The notes of the Events with this reason; one that occurred n times stands here n times."""
        found = [each for each in await self.stage.events(name) if each["reason"] == reason]
        return [each["note"] for each in found for _ in range((each.get("series") or {}).get("count", 1))]

    async def went_well(self) -> None:
        """Check what must hold in every story, for all services of this scene."""
        for name in self.names:
            await self.monitor.at_rest(name)
        broken = {name: found for name in self.names if (found := self.monitor.broken(name))}
        assert not broken, broken

    def served_all_along(self, name: str) -> None:
        """Check that a service stayed Ready, with a serving pod, ever since it was."""
        assert not self.monitor.lapses(name), self.monitor.lapses(name)


Scene = Callable[[Play], Awaitable[None]]


@asynccontextmanager
async def staged(bed: Bed, namespace: str, *, operator: Sequence[str] = ()) -> AsyncIterator[Play]:
    """A stage in a namespace of its own, with ticks of a second; `operator` adds to the operator's arguments."""
    await asyncio.to_thread(bed.create_namespace, namespace)
    try:
        stage = Stage(bed, namespace, interval="1s", window="6s", operator=f"operator-{namespace}")
        async with stage, Monitor(stage) as monitor:
            stage.start_operator(*operator)
            yield Play(stage, monitor)
    finally:
        bed.delete_namespace(namespace)


@dataclass(frozen=True, slots=True)
class Casting:
    """A scene, and the stage that it is played on."""

    scene: Scene
    stage: str

    @property
    def name(self) -> str:
        """The name of its test."""
        return str(getattr(self.scene, "__name__", self.scene))


class Playing:
    """The scenes of a test run, under way: one stage for all that name the same one."""

    def __init__(self, bed: Bed, castings: Sequence[Casting]) -> None:
        self._results = {casting.name: asyncio.get_running_loop().create_future() for casting in castings}
        self._places = asyncio.Semaphore(AT_ONCE)
        found = {casting.stage: [each for each in castings if each.stage == casting.stage] for casting in castings}
        # A scene that has a stage of its own is a long one: begun last, it would play alone in the end.
        stages = dict(sorted(found.items(), key=lambda stage: len(stage[1])))
        self._stages = {name: asyncio.create_task(self._on_stage(bed, name, own)) for name, own in stages.items()}
        self._castings = stages

    async def result(self, casting: Casting) -> None:
        """Wait for a scene to end. Raises what went wrong in it."""
        await self._results[casting.name]

    async def end(self) -> None:
        """End what nobody waited for."""
        for name, task in self._stages.items():
            # With every result told, a stage is only clearing away: cut off there, it would leave connections open.
            if not all(self._results[casting.name].done() for casting in self._castings[name]):
                task.cancel()
        await asyncio.gather(*self._stages.values(), *self._results.values(), return_exceptions=True)

    async def _on_stage(self, bed: Bed, name: str, castings: Sequence[Casting]) -> None:
        results = [self._results[casting.name] for casting in castings]
        try:
            async with staged(bed, name) as play:
                scenes = [Play(play.stage, play.monitor) for _ in castings]
                await asyncio.gather(*map(self._in_its_place, castings, scenes, results))
        except BaseException as error:
            for result in results:
                if not result.done():
                    result.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            raise

    async def _in_its_place(self, casting: Casting, play: Play, result: "asyncio.Future[None]") -> None:
        async with self._places:
            await _played(casting, play, result)


async def _played(casting: Casting, play: Play, result: "asyncio.Future[None]") -> None:
    try:
        await casting.scene(play)
        await play.went_well()
    except Exception as error:
        # Told by its test; the other scenes of the stage go on.
        result.set_exception(error)
    else:
        result.set_result(None)


def side_by_side(*, stage: str) -> Callable[[Scene], Callable[[Playing], Awaitable[None]]]:
    """Make a test of a scene; the fixture `playing` has started it. `stage` is also the namespace."""

    def test_of(scene: Scene) -> Callable[[Playing], Awaitable[None]]:
        casting = Casting(scene, stage)

        async def test(playing: Playing) -> None:
            await playing.result(casting)

        test.__name__ = test.__qualname__ = casting.name
        test.__doc__ = scene.__doc__
        test.casting = casting  # type: ignore[attr-defined]
        return test

    return test_of


def selected(items: Sequence[pytest.Item]) -> list[Casting]:
    """The castings of the tests that will run."""
    return [item.function.casting for item in items if isinstance(item, pytest.Function) and is_played(item)]


def is_played(item: pytest.Item) -> bool:
    """Whether a test is a scene."""
    return isinstance(item, pytest.Function) and hasattr(item.function, "casting")


def capped(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    """Four seats that more people want, room for more, and the right to give it: one change will double the seats."""
    tuning = {
        "mode": "Automatic",
        "maxNumSeqs": {"min": 2, "max": 8},
        "strategy": QUICK,
        "cooldown": "10m",
    } | spec.pop("tuning", {})
    engine = {"image": ENGINE_IMAGE, "maxNumSeqs": 4} | spec.pop("engine", {})
    template = engine_env(step_base_ms=40, step_per_seq_ms=0.5, startup_seconds=1, **spec.pop("simulated", {}))
    objectives = {"profile": "Latency", "ttft": {"target": "500ms"}, "tpot": {"target": "200ms"}}
    defaults = {"engine": engine, "podTemplate": template, "objectives": objectives, "tuning": tuning}
    service = vllm_service(namespace, name, **(defaults | spec))
    if "scaling" in spec:
        del service["spec"]["replicas"]
    return service


def degrading() -> dict[str, Any]:
    """For `simulated`: more than four seats make every token six times slower."""
    return {"degrade_above_seqs": 4, "degrade_factor": 6}


def change_of(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its active change, empty while there is none."""
    found: Mapping[str, Any] = status.get("activeChange") or {}
    return found


def seats_of(pod: Mapping[str, Any]) -> int | None:
    """The max-num-seqs that a pod was started with."""
    return parse_flags(pod["spec"]["containers"][0]["args"]).max_num_seqs


def brief(status: Mapping[str, Any]) -> str:
    """What a person would look at first."""
    diagnosis, change = status.get("diagnosis") or {}, change_of(status)
    conditions = {each["type"]: f"{each['status']} ({each['message']})" for each in status.get("conditions", [])}
    return (
        f"diagnosis {diagnosis.get('class')}: {diagnosis.get('message')}; change {change.get('state')} "
        f"({change.get('stateReason')}); recommendation {(status.get('recommendation') or {}).get('reason')}; "
        f"conditions {conditions}; history {status.get('history')}"
    )
