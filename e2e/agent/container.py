"""One container of a pod over all its starts: start, probe, wait, back off, start again.

Apart from `pod`, which orders containers; apart from `process`, which knows no restarts.
Must not: talk to the API server about the pod's status; it changes its `view` and says that it did.
The run task alone owns the process: whoever wants it to end sets an event, so that no two tasks signal or reap it.
"""

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from e2e.agent.api import ApiError, ConnectionFailed
from e2e.agent.context import PodContext
from e2e.agent.grace import GracePeriod
from e2e.agent.health import Health
from e2e.agent.logs import LogFile, fallback_message
from e2e.agent.objects import Object, Unstartable, key_of, uid_of, utc_now
from e2e.agent.preparation import prepared
from e2e.agent.probes import ProbeFailed, Target
from e2e.agent.process import Command, Process, StartFailed, run
from e2e.agent.status import ContainerView, Running, State, Terminated, Waiting, restarts

START_ERROR: Final = 128
"""Exit code of a command that could not be executed, as in a kubelet."""
_RETRY_SECONDS: Final = 1.0
_LONGEST_MESSAGE: Final = 4096
_DEFAULT_GRACE: Final = 30
_FOREVER: Final = 365 * 24 * 3600.0

logger = logging.getLogger(__name__)


class Container:
    """One container. `run` is started once; `stop` ends it for good."""

    def __init__(self, spec: Object, *, context: PodContext, policy: str, sidecar: bool = False) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.state: State = Waiting(reason="ContainerCreating")
        self.pid: int | None = None
        """The main process while it runs."""
        self.started = asyncio.Event()
        """Set while it runs and its startup probe has succeeded."""
        self._context = context
        self._policy = policy
        self._sidecar = sidecar
        self._folder: Path = context.folder / "containers" / self.name
        self._termination_log = self._folder / "termination-log"
        self._last: Terminated | None = None
        self._restart_count = 0
        self._ready = False
        self._container_id = ""
        self._newest_log: int | None = None
        self._last_log: int | None = None
        self._stopping = asyncio.Event()
        self._grace: GracePeriod | None = None
        self._out_of_memory = False

    @property
    def view(self) -> ContainerView:
        """Return the container at this moment."""
        return ContainerView(
            name=self.name,
            image=self.spec["image"],
            state=self.state,
            last=self._last,
            container_id=self._container_id,
            ready=self._ready,
            started=self.started.is_set(),
            restart_count=self._restart_count,
            sidecar=self._sidecar,
        )

    def adopt_history(self, former: Object) -> None:
        """Go on counting where a process node before this one stopped; its containers died with it."""
        self._restart_count = former.get("restartCount", 0)
        if "running" in former.get("state", {}):
            self._restart_count += 1
            now = utc_now()
            self._last = Terminated(
                exit_code=137, reason="Error", message="the node restarted", started_at=now, finished_at=now
            )

    async def run(self) -> None:
        """Run until the restart policy or `stop` ends it."""
        self._folder.joinpath("work").mkdir(parents=True, exist_ok=True)
        failures = 0
        while not self._stopping.is_set():
            ended = await self._try_once()
            if ended is None:
                await self._pause(_RETRY_SECONDS)
                continue
            ran = (ended.finished_at - ended.started_at).total_seconds()
            failures = 1 if self._context.node.back_off.forgives(ran) else failures + 1
            if self._stopping.is_set() or not restarts(self._policy, ended.exit_code):
                return
            if delay := self._context.node.back_off.before_restart(failures):
                await self._back_off(delay, ended)
            if not self._stopping.is_set():
                self._has_ended(ended)
                self._restart_count += 1

    def stop(self, grace: GracePeriod) -> None:
        """Ask the run task to end the container; it is done when that task is. A second call may shorten the time."""
        if self._grace is None:
            self._grace = grace
        else:
            self._grace.shorten(grace)
        self._stopping.set()

    def kill_as_out_of_memory(self) -> None:
        """End the process as the kernel does when the memory limit is reached."""
        if self.pid is not None:
            self._out_of_memory = True
            os.kill(self.pid, signal.SIGKILL)

    def log_path(self, *, previous: bool) -> Path | None:
        """Return the log of the current or the former instance, None when there is none."""
        # Between two instances there is no current one: both questions are about the one that has ended.
        index = self._last_log if previous else self._newest_log
        if index is None:
            return None
        path = self._path_of_log(index)
        return path if path.exists() else None

    async def _try_once(self) -> Terminated | None:
        """Run once. None when it could not even be tried; the state then says why."""
        try:
            self._termination_log.write_bytes(b"")
            command = await prepared(
                self.spec,
                context=self._context,
                work=self._folder / "work",
                termination_log=self._termination_log,
            )
            return await self._run_once(command)
        except Unstartable as obstacle:
            self._emit("Warning", "Failed", f"Error: {obstacle.reason}: {obstacle.message}")
            self._become(Waiting(reason=obstacle.reason, message=obstacle.message))
        except (ApiError, *ConnectionFailed) as error:
            self._become(Waiting(reason="CreateContainerConfigError", message=repr(error)))
        except Exception as error:
            # A defect of ours: it may break this container, never the node.
            logger.exception("container %s of %s", self.name, key_of(self._context.pod))
            self._become(Waiting(reason="CreateContainerError", message=repr(error)))
        return None

    async def _run_once(self, command: Command) -> Terminated:
        started_at = utc_now()
        self._container_id = f"process://{uuid.uuid4().hex}"
        self._out_of_memory = False
        log = self._open_log()
        reason, message = "Error", ""
        try:
            process = await Process.start(
                command,
                scratch=self._folder,
                on_output=lambda stream, data: log.feed(stream, data, now=utc_now()),
            )
            started_at = utc_now()
            self._emit("Normal", "Started", f"Started container {self.name}")
            code = await self._attend(process, command=command)
        except StartFailed as error:
            code, reason, message = START_ERROR, "StartError", str(error)
            self._emit("Warning", "Failed", f"Error: failed to start container: {error}")
        finally:
            log.close(now=utc_now())
        ended = Terminated(
            exit_code=code,
            reason="OOMKilled" if self._out_of_memory else "Completed" if code == 0 else reason,
            message=message or self._termination_message(code),
            started_at=started_at,
            finished_at=utc_now(),
            container_id=self._container_id,
        )
        self._become(ended)
        return ended

    async def _attend(self, process: Process, *, command: Command) -> int:
        """Wait for the process to end, or end it when `stop` or a probe wants that. Returns the exit code."""
        self.pid = process.pid
        if not self._stopping.is_set():
            self._grace = None
        self._become(Running(started_at=utc_now()))

        async def run_inside(argv: Sequence[str], seconds: float) -> tuple[int, str]:
            return await run(command.beside(argv, pid=process.pid), scratch=self._folder, seconds=seconds)

        target = Target(container=self.spec, ip=self._context.ip, http=self._context.node.http, run_inside=run_inside)
        health = Health(
            self.spec, ask=target.ask, report=self._report_unhealthy, changed=lambda: self._take_over(health)
        )
        ending = asyncio.create_task(process.wait())
        stopped = asyncio.create_task(self._stopping.wait())
        unhealthy = asyncio.create_task(health.watch())
        try:
            await asyncio.wait({ending, stopped, unhealthy}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                if self._stopping.is_set():
                    self._emit("Normal", "Killing", f"Stopping container {self.name}")
                else:
                    verdict = unhealthy.result()
                    of_pod = self._context.pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
                    self._grace = GracePeriod(of_pod if verdict.grace is None else verdict.grace)
                    words = f"Container {self.name} failed {verdict.probe} probe, will be restarted"
                    self._emit("Normal", "Killing", words)
                await self._end(process, ending=ending, target=target)
            return await ending
        finally:
            self.pid = None
            self._ready = False
            self.started.clear()
            # The first process of a container takes all others with it.
            process.kill_all()
            for task in (ending, stopped, unhealthy):
                task.cancel()
            await asyncio.gather(ending, stopped, unhealthy, return_exceptions=True)
            await process.drain()

    async def _end(self, process: Process, *, ending: "asyncio.Task[int]", target: Target) -> None:
        """Hook, SIGTERM, and SIGKILL when the grace period is over."""
        assert self._grace is not None, "only `stop` and a probe want a container to end"
        if hook := (self.spec.get("lifecycle") or {}).get("preStop"):
            first = asyncio.create_task(target.ask(hook, _FOREVER))
            await self._grace.outlasts(first)
            first.cancel()
            for outcome in await asyncio.gather(first, return_exceptions=True):
                if isinstance(outcome, ProbeFailed):
                    self._emit("Warning", "FailedPreStopHook", str(outcome))
        process.signal(signal.SIGTERM)
        if not await self._grace.outlasts(ending):
            process.kill_all()

    def _take_over(self, health: Health) -> None:
        self._ready = health.ready
        if health.started:
            self.started.set()
        self._context.changed()

    def _report_unhealthy(self, message: str) -> None:
        if not self._stopping.is_set():
            self._emit("Warning", "Unhealthy", message)

    async def _back_off(self, delay: float, ended: Terminated) -> None:
        metadata = self._context.pod["metadata"]
        pod = f"{metadata['name']}_{metadata['namespace']}({uid_of(self._context.pod)})"
        message = f"back-off {delay:g}s restarting failed container={self.name} pod={pod}"
        self._emit("Warning", "BackOff", f"Back-off restarting failed container {self.name} in pod {pod}")
        self._has_ended(ended)
        self._become(Waiting(reason="CrashLoopBackOff", message=message))
        await self._pause(delay)

    def _has_ended(self, ended: Terminated) -> None:
        # Together: whoever is told of an end may ask for its log at once, also while the next instance starts.
        self._last, self._last_log = ended, self._newest_log

    def _termination_message(self, code: int) -> str:
        message: str = self._termination_log.read_bytes()[:_LONGEST_MESSAGE].decode(errors="replace")
        if not message and code != 0 and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return fallback_message(self._path_of_log(self._restart_count))
        return message

    def _open_log(self) -> LogFile:
        self._newest_log = self._restart_count
        # As a kubelet: the current instance and one before it.
        self._path_of_log(self._restart_count - 2).unlink(missing_ok=True)
        return LogFile(self._path_of_log(self._restart_count))

    def _path_of_log(self, index: int) -> Path:
        return self._folder / f"{index}.log"

    def _become(self, state: State) -> None:
        self.state = state
        self._context.changed()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _emit(self, kind: str, reason: str, message: str) -> None:
        self._context.emit(kind=kind, reason=reason, message=message, container=self.name)
