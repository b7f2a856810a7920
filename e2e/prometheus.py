"""A real Prometheus: over the pods of a bed, or over a recording.

Apart from the control plane, because a recording needs no Kubernetes, and because a test freezes or restarts it alone.
Must not: decide what a query means; it hands back what Prometheus answered.
"""

import gzip
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from e2e.control_plane import answers
from e2e.errors import CommandError
from e2e.network import GATEWAY, Mode
from e2e.ports import free_ports
from e2e.processes import PATIENCE, Processes

START_SECONDS: Final = PATIENCE
"""Usually half a second; a large recording is read first."""
STOP_SECONDS: Final = 60.0
SCRAPE_CONFIG: Final = {"scrape_interval": "1s", "scrape_timeout": "900ms", "evaluation_interval": "1s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One element of an instant vector."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """One server with a fixed port and a fixed data folder: a restart goes on with its data."""

    def __init__(
        self,
        *,
        binaries: Mapping[str, Path],
        processes: Processes,
        data: Path,
        config: Mapping[str, object],
        mode: Mode = "loopback",
        name: str = "prometheus",
        port: int | None = None,
    ) -> None:
        """`data` holds the configuration and, in `tsdb`, the series; `name` tells several servers of a bed apart."""
        self._binary = binaries["prometheus"]
        self._processes = processes
        self._data = data
        self._config = config
        self._name = name
        self._port = port or free_ports(1)[0]
        # In a namespace, pods with their own address must reach it too; outside, nobody else may.
        self._bind = "127.0.0.1" if mode == "loopback" else "0.0.0.0"
        self.url = f"http://{'127.0.0.1' if mode == 'loopback' else GATEWAY}:{self._port}"

    async def start(self) -> None:
        """Start, and wait until queries are answered. Raises StartError when it dies or stays silent."""
        self._data.mkdir(parents=True, exist_ok=True)
        config = self._write(self._config)
        command = [
            str(self._binary),
            f"--config.file={config}",
            f"--storage.tsdb.path={self._data / 'tsdb'}",
            # Recordings are old: the default of 15 days would drop them.
            "--storage.tsdb.retention.time=10y",
            # A new pod's series appear after about 1 s; with the default of 5 s after 6 s.
            "--scrape.discovery-reload-interval=1s",
            f"--web.listen-address={self._bind}:{self._port}",
            "--log.level=warn",
        ]
        self._processes.start(self._name, command)
        await self._processes.wait_ready(self._name, self._ready, seconds=START_SECONDS)

    def stop(self) -> None:
        """End it in order, so that its last samples are written; nothing happens when it does not run."""
        self._processes.stop(self._name, grace=STOP_SECONDS)

    def kill(self) -> None:
        """End it as a crash would."""
        self._processes.stop(self._name)

    def pause(self) -> None:
        """Freeze it: connections are accepted by the kernel and nobody answers."""
        self._processes.pause(self._name)

    def resume(self) -> None:
        """Let it go on; the samples of the pause are missing."""
        self._processes.resume(self._name)

    def reconfigure(self, config: Mapping[str, object] | None = None) -> None:
        """Let the running server follow another configuration; without one, its first again."""
        self._write(self._config if config is None else config)
        self._processes.identity(self._name).signal(signal.SIGHUP)

    def _write(self, config: Mapping[str, object]) -> Path:
        path = self._data / "prometheus.yml"
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
        return path

    def query(self, expression: str, *, at: float | None = None, timeout: float = 60) -> list[Sample]:
        """Run an instant query at a Unix time (now when None).

        Raises CommandError with Prometheus' own words when it refuses, httpx.HTTPError when there is no answer.
        """
        parameters = {"query": expression} | ({} if at is None else {"time": str(at)})
        with httpx.Client(trust_env=False, timeout=timeout) as client:
            answer = client.get(f"{self.url}/api/v1/query", params=parameters).json()
        if answer["status"] != "success":
            raise CommandError(f"{expression}: {answer['error']}")
        return [Sample(labels=series["metric"], value=float(series["value"][1])) for series in answer["data"]["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """The rules that it evaluates, as it tells of them."""
        with httpx.Client(trust_env=False, timeout=60) as client:
            groups = client.get(f"{self.url}/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def _ready(self) -> bool:
        if not self._processes.listens(self._name, port=self._port):
            return False
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            return await answers(client, f"{self.url}/-/ready")


def pod_discovery(*, api_url: str, ca_file: Path, token_file: Path) -> dict[str, object]:
    """Return a configuration that scrapes every declared port of pods annotated `prometheus.io/scrape: "true"`.

    Series get the labels namespace, pod and app. A pod that does not listen yet is a target with `up == 0`.
    """

    def meta(name: str, **rest: str) -> dict[str, object]:
        return {"source_labels": [f"__meta_kubernetes_{name}"], **rest}

    return {
        "global": SCRAPE_CONFIG,
        "scrape_configs": [
            {
                "job_name": "pods",
                "kubernetes_sd_configs": [
                    {
                        "role": "pod",
                        "api_server": api_url,
                        "authorization": {"type": "Bearer", "credentials_file": str(token_file)},
                        "tls_config": {"ca_file": str(ca_file)},
                    }
                ],
                "relabel_configs": [
                    meta("pod_annotation_prometheus_io_scrape", regex="true", action="keep"),
                    meta("pod_phase", regex="Pending|Succeeded|Failed", action="drop"),
                    meta("pod_container_init", regex="true", action="drop"),
                    meta("namespace", target_label="namespace"),
                    meta("pod_name", target_label="pod"),
                    meta("pod_label_app", target_label="app"),
                ],
            }
        ],
    }


def load_recording(
    source: Path, *, binaries: Mapping[str, Path], data: Path, labels: Mapping[str, str] | None = None
) -> None:
    """Turn an OpenMetrics file (plain, or gzip as `.gz`) into blocks of the data folder of a stopped Prometheus.

    `labels` are added to every series; recordings with equal labels must not overlap in time.
    Raises CommandError with promtool's words when the file is not OpenMetrics.
    """
    added = [f"--label={name}={value}" for name, value in (labels or {}).items()]
    with tempfile.TemporaryDirectory() as folder:
        plain = source
        if source.suffix == ".gz":  # promtool reads no gzip
            plain = Path(folder) / source.stem
            with gzip.open(source) as packed, plain.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        run([binaries["promtool"], "tsdb", "create-blocks-from", "openmetrics", *added, plain, data / "tsdb"])


def run(command: Sequence[str | Path]) -> str:
    """Run a command to its end and return its stdout. Raises CommandError with its stderr."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        name = Path(command[0]).name
        raise CommandError(f"{name} {command[1]}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout
