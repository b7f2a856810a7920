"""One real vLLM as a local process, outside of any pod: started, asked, stopped and struck.

Must not: know load or scenarios' phases.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import httpx

from e2e.errors import EngineError
from e2e.real_engine import RealEngine
from e2e.recordings.scenarios import Scenario

__all__ = ["Engine"]

CORE = b"VLLM::EngineCor"
"""How the engine core names its process; the kernel keeps 15 characters."""


class Engine:
    """Call `start`, await `ready`, and `stop` in the end: it stands in a process group of its own."""

    def __init__(self, found: RealEngine, scenario: Scenario, *, port: int, log: Path) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        self.argv = [
            "serve", str(found.model.name), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
            "--max-num-seqs", str(scenario.max_num_seqs), "--max-model-len", str(scenario.max_model_len),
            "--enforce-eager", "--num-gpu-blocks-override", str(scenario.blocks), *scenario.args,
        ]  # fmt: skip
        self._command = [*found.command, str(found.model), *self.argv[2:]]
        self._env = {**os.environ, **found.env, **scenario.environment}
        if scenario.core_apart:
            self._env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the log goes on where it was."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    async def ready(self, *, within: float) -> None:
        """Wait until it answers. Raises EngineError when it ends, or not `within` seconds."""
        deadline = time.monotonic() + within
        async with httpx.AsyncClient(timeout=5.0) as client:
            while time.monotonic() < deadline:
                if self._process is None or self._process.poll() is not None:
                    raise EngineError(f"the engine ended while it started: {self._log}")
                try:
                    if (await client.get(f"{self.url}/health")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.2)
        raise EngineError(f"the engine was not ready within {within:.0f} s: {self._log}")

    def signal_core(self, number: signal.Signals) -> None:
        """Send a signal to the engine core alone. Raises EngineError when it has no process of its own."""
        if self._process is None:
            raise EngineError("the engine is not running")
        for status in Path("/proc").glob("[0-9]*/comm"):
            try:
                if status.read_bytes().startswith(CORE) and os.getsid(int(status.parent.name)) == self._process.pid:
                    os.kill(int(status.parent.name), number)
                    return
            except (FileNotFoundError, ProcessLookupError):
                continue
        raise EngineError("the engine core has no process of its own")

    def stop(self) -> None:
        """End it and everything it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
