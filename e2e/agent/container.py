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
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

from e2e.agent.api import ApiError, ConnectionFailed
from e2e.agent.context import PodContext
from e2e.agent.environment import environment, expand, expand_all, references
from e2e.agent.grace import GracePeriod
from e2e.agent.logs import LogFile, fallback_message
from e2e.agent.objects import Object, Unstartable, key_of, uid_of, utc_now
from e2e.agent.probes import ProbeFailed, ProbeTiming, http_get, port_of, tcp_socket, verdicts
from e2e.agent.process import Command, Mount, Process, StartFailed, run
from e2e.agent.status import ContainerView, Running, State, Terminated, Waiting, restarts
from e2e.agent.volumes import relocated

START_ERROR: Final = 128
"""Exit code of a command that could not be executed, as in a kubelet."""
_RETRY_SECONDS: Final = 1.0
_LONGEST_MESSAGE: Final = 4096
_TERMINATION_LOG: Final = "/dev/termination-log"
_FOREVER: Final = 365 * 24 * 3600.0

logger = logging.getLogger(__name__)


class Container:
    """One container. `run` is started once; `stop` ends it for good."""

    def __init__(self, spec: Object, *, context: PodContext, policy: str, sidecar: bool = False) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.started = asyncio.Event()
        self.state: State = Waiting(reason="ContainerCreating")
        self.pid: int | None = None
        self._context: PodContext = context
        self._policy = policy
        self._sidecar = sidecar
        self._folder: Path = context.folder / "containers" / self.name
        self._last: Terminated | None = None
        self._restart_count = 0
        self._ready = False
        self._container_id = ""
        self._log_index: int | None = None
        self._stopping = asyncio.Event()
        self._unhealthy: tuple[str, float] | None = None
        self._wanted_end = asyncio.Event()
        self._grace: GracePeriod | None = None
        self._out_of_memory = False
        self._command: Command | None = None

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
            try:
                ended = await self._run_once()
            except Exception as error:
                # Our own defect, or a full disk: it may break this container, never the node.
                logger.exception("container %s of %s", self.name, key_of(self._context.pod))
                self._become(Waiting(reason="CreateContainerError", message=repr(error)))
                ended = None
            if ended is None:
                await self._pause(_RETRY_SECONDS)
                continue
            ran = (ended.finished_at - ended.started_at).total_seconds()
            failures = 1 if self._context.node.back_off.forgives(ran) else failures + 1
            if self._stopping.is_set() or not restarts(self._policy, ended.exit_code):
                return
            delay = self._context.node.back_off.before_restart(failures)
            if delay:
                message = f"back-off {delay:g}s restarting failed container={self.name} pod={self._pod_text}"
                self._emit("Warning", "BackOff", f"Back-off restarting failed container {self.name}")
                self._last = ended
                self._become(Waiting(reason="CrashLoopBackOff", message=message))
                await self._pause(delay)
            if not self._stopping.is_set():
                self._last = ended
                self._restart_count += 1

    def stop(self, grace: GracePeriod) -> None:
        """Ask the run task to end the container; it is done when that task is. A second call may shorten the time."""
        if self._grace is None:
            self._grace = grace
        else:
            self._grace.shorten(grace)
        self._stopping.set()
        self._wanted_end.set()

    def kill_as_out_of_memory(self) -> None:
        """End the process as the kernel does when the memory limit is reached."""
        if self.pid is not None:
            self._out_of_memory = True
            os.kill(self.pid, signal.SIGKILL)

    def log_path(self, *, previous: bool) -> Path | None:
        """Return the log of the current or the former instance, None when there is none."""
        if self._log_index is None:
            return None
        # Between two instances there is no current one: both questions are about the one that has ended.
        former = isinstance(self.state, Waiting) or not previous
        index = self._log_index if former else self._log_index - 1
        path = self._path_of_log(index)
        return path if path.exists() else None

    async def _run_once(self) -> Terminated | None:
        """Start, wait, and return how it ended. None when it could not even be tried."""
        started_at = utc_now()
        self._out_of_memory = False
        try:
            self._command = await self._prepared()
        except Unstartable as obstacle:
            self._emit("Warning", "Failed", f"Error: {obstacle.reason}: {obstacle.message}")
            self._become(Waiting(reason=obstacle.reason, message=obstacle.message))
            return None
        except (ApiError, *ConnectionFailed) as error:
            self._become(Waiting(reason="CreateContainerConfigError", message=repr(error)))
            return None
        self._container_id = f"process://{uuid.uuid4().hex}"
        self._open_log()
        log = LogFile(self._path_of_log(self._restart_count))
        reason = "Error"
        message = ""
        try:
            process = await Process.start(
                self._command,
                scratch=self._folder,
                on_output=lambda stream, data: log.feed(stream, data, now=utc_now()),
            )
        except StartFailed as error:
            code, reason, message = START_ERROR, "StartError", str(error)
            self._emit("Warning", "Failed", f"Error: failed to start container: {error}")
        else:
            started_at = utc_now()
            self._emit("Normal", "Started", f"Started container {self.name}")
            code = await self._attend(process)
        finally:
            log.close(now=utc_now())
        if self._out_of_memory:
            reason = "OOMKilled"
        ended = Terminated(
            exit_code=code,
            reason="Completed" if code == 0 else reason,
            message=message or self._termination_message(code),
            started_at=started_at,
            finished_at=utc_now(),
            container_id=self._container_id,
        )
        self._ready = False
        self.started.clear()
        self._become(ended)
        return ended

    async def _attend(self, process: Process) -> int:
        """Probe the process and wait for its end, which `stop` or a probe may want. Returns the exit code."""
        self.pid = process.pid
        if not self._stopping.is_set():
            self._grace = self._unhealthy = None
            self._wanted_end.clear()
        self._become(Running(started_at=utc_now()))
        ending = asyncio.create_task(process.wait())
        wanted = asyncio.create_task(self._wanted_end.wait())
        probing = asyncio.create_task(self._probe())
        try:
            await asyncio.wait({ending, wanted}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await self._end(process, ending)
            return await ending
        finally:
            self.pid = None
            # The first process of a container takes all others with it.
            process.kill_all()
            for task in (wanted, probing, ending):
                task.cancel()
            for outcome in await asyncio.gather(wanted, probing, return_exceptions=True):
                if isinstance(outcome, Exception):
                    logger.error("probing %s failed", self.name, exc_info=outcome)
            await process.drain()

    async def _end(self, process: Process, ending: "asyncio.Task[int]") -> None:
        if self._stopping.is_set():
            self._emit("Normal", "Killing", f"Stopping container {self.name}")
        elif self._unhealthy is not None:
            probe, seconds = self._unhealthy
            self._grace = GracePeriod(seconds)
            self._emit("Normal", "Killing", f"Container {self.name} failed {probe} probe, will be restarted")
        grace = self._grace
        assert grace is not None, "only `stop` and a probe want a container to end"
        if hook := (self.spec.get("lifecycle") or {}).get("preStop"):
            first = asyncio.create_task(self._ask(hook, seconds=_FOREVER))
            if not await grace.outlasts(first):
                first.cancel()
            for outcome in await asyncio.gather(first, return_exceptions=True):
                if isinstance(outcome, ProbeFailed):
                    self._emit("Warning", "FailedPreStopHook", str(outcome))
        process.signal(signal.SIGTERM)
        if not await grace.outlasts(ending):
            process.kill_all()
            await asyncio.wait({ending})

    async def _probe(self) -> None:
        if startup := self.spec.get("startupProbe"):
            async for verdict in verdicts(ProbeTiming.of(startup), lambda seconds: self._ask(startup, seconds=seconds)):
                self._report("Startup", verdict.message)
                if verdict.holds is False:
                    self._give_up("startup", startup)
                    return
                if verdict.holds:
                    break
        self.started.set()
        self._ready = "readinessProbe" not in self.spec
        self._context.changed()
        await asyncio.gather(self._probe_readiness(), self._probe_liveness())

    async def _probe_readiness(self) -> None:
        if probe := self.spec.get("readinessProbe"):
            async for verdict in verdicts(ProbeTiming.of(probe), lambda seconds: self._ask(probe, seconds=seconds)):
                self._report("Readiness", verdict.message)
                if verdict.holds is not None and verdict.holds is not self._ready:
                    self._ready = verdict.holds
                    self._context.changed()

    async def _probe_liveness(self) -> None:
        if probe := self.spec.get("livenessProbe"):
            async for verdict in verdicts(ProbeTiming.of(probe), lambda seconds: self._ask(probe, seconds=seconds)):
                if self._stopping.is_set():
                    return
                self._report("Liveness", verdict.message)
                if verdict.holds is False:
                    self._give_up("liveness", probe)
                    return

    def _give_up(self, kind: str, probe: Object) -> None:
        of_pod = self._context.pod["spec"].get("terminationGracePeriodSeconds", 30)
        self._unhealthy = (kind, probe.get("terminationGracePeriodSeconds", of_pod))
        self._wanted_end.set()

    def _report(self, kind: str, message: str) -> None:
        if message and not self._stopping.is_set():
            self._emit("Warning", "Unhealthy", f"{kind} probe failed: {message}")

    async def _ask(self, action: Object, *, seconds: float) -> None:
        """Do what a probe or a hook says. Raises ProbeFailed."""
        assert self._command is not None
        if http := action.get("httpGet"):
            port = port_of(http, self.spec)
            await http_get(self._context.node.http, http, ip=self._context.ip, port=port, seconds=seconds)
        elif tcp := action.get("tcpSocket"):
            await tcp_socket(tcp, ip=self._context.ip, port=port_of(tcp, self.spec), seconds=seconds)
        elif pause := action.get("sleep"):
            await asyncio.sleep(pause["seconds"])
        elif command := action.get("exec"):
            await _succeeds(run(self._inside(command["command"]), scratch=self._folder, seconds=seconds))
        else:
            raise ProbeFailed(f"{sorted(action)} is not supported by the process node")

    def _inside(self, argv: list[str]) -> Command:
        """Return a command that runs where the container's process runs."""
        assert self._command is not None
        own_mounts = self._command.mounts is not None
        return Command(
            argv=argv,
            env=self._command.env,
            folder="/" if own_mounts else self._command.folder,
            prefix=self._command.prefix,
            join=self.pid if own_mounts else None,
        )

    async def _prepared(self) -> Command:
        """Return what to run. Raises Unstartable, ApiError or one of ConnectionFailed."""
        context, node = self._context, self._context.node
        assert context.network is not None
        image = node.images.find(self.spec["image"])
        namespace = context.pod["metadata"]["namespace"]
        sources = {source: await node.read(namespace, source) for source in references(self.spec)}
        isolated = node.network.mode == "namespace"
        termination_log = self._folder / "termination-log"
        termination_log.write_bytes(b"")
        base = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "HOSTNAME": context.pod["metadata"]["name"],
            "POD_IP": context.ip,
            **(context.variables or {}),
        }
        if not isolated:
            base["TERMINATION_LOG"] = str(termination_log)
        base |= {name: expand(value, base) for name, value in image.env.items()}
        env = environment(self.spec, facts=context.facts, sources=sources, base=base)
        argv = expand_all(image.command_line(self.spec), env)
        if not argv:
            raise Unstartable("CreateContainerError", "no command specified")
        mounts = context.volumes.mounts(self.spec, pod=context.pod)
        folder = self.spec.get("workingDir") or str(self._folder / "work")
        if isolated:
            target = self.spec.get("terminationMessagePath") or _TERMINATION_LOG
            mounts.append(Mount(source=str(termination_log), target=target))
        else:
            argv = [relocated(word, mounts) for word in argv]
            env = {name: relocated(value, mounts) for name, value in env.items()}
            folder = relocated(folder, mounts)
        return Command(
            argv=argv,
            env=env,
            folder=folder,
            prefix=context.network.command_prefix,
            mounts=mounts if isolated else None,
            kept=node.kept if isolated else (),
        )

    def _termination_message(self, code: int) -> str:
        with self._folder.joinpath("termination-log").open("rb") as file:
            message = file.read(_LONGEST_MESSAGE).decode(errors="replace")
        if not message and code != 0 and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return fallback_message(self._path_of_log(self._restart_count))
        return message

    def _open_log(self) -> None:
        self._log_index = self._restart_count
        # As a kubelet: the current instance and one before it.
        self._path_of_log(self._restart_count - 2).unlink(missing_ok=True)

    def _path_of_log(self, index: int) -> Path:
        return self._folder / f"{index}.log"

    def _become(self, state: State) -> None:
        self.state = state
        self._context.changed()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _emit(self, kind: str, reason: str, message: str) -> None:
        self._context.emit(kind=kind, reason=reason, message=message, container=self.name)

    @property
    def _pod_text(self) -> str:
        metadata = self._context.pod["metadata"]
        return f"{metadata['name']}_{metadata['namespace']}({uid_of(self._context.pod)})"


async def _succeeds(running: Awaitable[tuple[int, str]]) -> None:
    try:
        code, output = await running
    except TimeoutError:
        raise ProbeFailed("command timed out") from None
    except StartFailed as error:
        raise ProbeFailed(str(error)) from None
    if code != 0:
        raise ProbeFailed(output.strip() or f"command ended with exit code {code}")
