"""`vllm-autotuner run` as a process: it starts, leads, ends on request, and is replaced when it dies."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.bed import Bed
from e2e.control_plane import API_SERVER
from e2e.operator_account import NAMESPACE, install, vllm_service
from e2e.ports import free_ports
from e2e.processes import PATIENCE
from vllm_autotuner.control.shard import Shard
from vllm_autotuner.workload.labels import LEASE_EPOCH


class Operator:
    """One operator process. Its log lines are JSON; whatever else it writes to stderr is for people."""

    def __init__(
        self,
        bed: Bed,
        *,
        kubeconfig: Path,
        lease: str,
        log: Path,
        listen: str | None = None,
        more: Sequence[str] = (),
    ) -> None:
        self.address = listen or f"127.0.0.1:{free_ports(1)[0]}"
        self._log = log
        command = [
            *(sys.executable, "-m", "vllm_autotuner", "run"),
            *("--prometheus-url", bed.prometheus_url),
            *("--kubeconfig", str(kubeconfig)),
            *("--listen-address", self.address),
            *("--lease-namespace", NAMESPACE, "--lease-name", lease),
            *("--interval", "1s", "--window", "5s", "--log-format", "json"),
            *more,
        ]
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr, start_new_session=True)

    def output(self) -> str:
        return self._log.read_text()

    def logged(self, message: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.output().splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] == message]

    def get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(f"http://{self.address}{path}", trust_env=False, timeout=10)
        except httpx.TransportError:
            return None

    @property
    def ready(self) -> bool:
        answer = self.get("/readyz")
        return answer is not None and answer.status_code == 200

    @property
    def leads(self) -> bool:
        answer = self.get("/metrics")
        return answer is not None and "vllm_autotuner_leader 1.0" in answer.text

    def wait_until(self, condition: Callable[[], object], what: str, *, seconds: float = PATIENCE) -> float:
        """Wait for a condition and return how long it took; say what was seen when it does not come."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > seconds:
                pytest.fail(f"not {what} within {seconds:.0f} s; its log:\n{self.output()}")
            time.sleep(0.05)
        return time.monotonic() - began

    def ends(self, *, within: float) -> int:
        try:
            return self.process.wait(timeout=within)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {within:.0f} s; its log:\n{self.output()}")


Start = Callable[..., Operator]


@pytest.fixture(scope="session")
def kubeconfig(bed: Bed) -> Path:
    return install(bed)


@pytest.fixture
def start(bed: Bed, kubeconfig: Path, tmp_path: Path, namespace: str) -> Iterator[Start]:
    """Start operators that share a lease of this test alone."""
    started: list[Operator] = []

    def start(**options: Any) -> Operator:
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(Operator(bed, lease=namespace, log=log, **{"kubeconfig": kubeconfig} | options))
        return started[-1]

    yield start
    for operator in started:
        if operator.process.poll() is None:
            operator.process.kill()
            operator.process.wait()


def seen_by(operator: Operator) -> str:
    """How many services it looks after, by diagnosis, as its metrics tell."""
    answer = operator.get("/metrics")
    lines = answer.text.splitlines() if answer is not None else []
    return "\n".join(line for line in lines if line.startswith("vllm_autotuner_services{"))


def leads(operator: Operator) -> bool:
    return operator.leads


def epoch_of(bed: Bed, namespace: str) -> int:
    """In which its Deployment was written last; 0 before it was written."""
    body = json.loads(bed.kubectl("get", "deployments", f"--namespace={namespace}", "-o", "json"))
    return max((int(each["metadata"]["annotations"][LEASE_EPOCH]) for each in body["items"]), default=0)


def holder(bed: Bed, lease: str) -> str:
    return bed.kubectl("get", "lease", lease, f"--namespace={NAMESPACE}", "-o", "jsonpath={.spec.holderIdentity}")


def at(bed: Bed, lease: str, moment: str) -> datetime:
    """When it was acquired or renewed, by the clock of its holder."""
    path = f"jsonpath={{.spec.{moment}}}"
    return datetime.fromisoformat(bed.kubectl("get", "lease", lease, f"--namespace={NAMESPACE}", "-o", path))


def test_it_lists_the_fleet_becomes_ready_leads_and_ends_on_sigterm(bed: Bed, start: Start, namespace: str) -> None:
    bed.apply([vllm_service(namespace)])
    operator = start()
    operator.wait_until(lambda: operator.ready, "ready")
    operator.wait_until(lambda: operator.leads, "leading")
    listed = operator.logged("initial list complete")
    assert listed[0]["services"] >= 1
    health = operator.get("/healthz")
    assert health is not None
    assert health.status_code == 200, health.text
    operator.process.send_signal(signal.SIGTERM)
    assert operator.ends(within=PATIENCE) == 0, operator.output()
    assert holder(bed, namespace) == "", "the lease was not given back"
    assert "Traceback" not in operator.output()


def test_a_standby_is_ready_and_takes_over_at_once_when_the_leader_is_told_to_end(start: Start) -> None:
    first = start()
    first.wait_until(lambda: first.leads, "leading")
    second = start()
    second.wait_until(lambda: second.ready, "ready")
    assert not second.leads
    first.process.send_signal(signal.SIGTERM)
    second.wait_until(lambda: second.leads, "leading")
    assert first.ends(within=PATIENCE) == 0
    # By their own clocks: how long a busy machine takes to end one and to ask the other is not the point.
    released, acquired = first.logged("lease released")[-1], second.logged("became leader")[-1]
    took = (datetime.fromisoformat(acquired["time"]) - datetime.fromisoformat(released["time"])).total_seconds()
    assert took < 10, f"took over after {took:.1f} s: as if the lease had not been given back"
    assert second.logged("became leader")[-1]["epoch"] > first.logged("became leader")[-1]["epoch"]


@pytest.mark.fault("T09")
def test_a_killed_leader_is_replaced_after_the_lease_and_not_before(bed: Bed, start: Start, namespace: str) -> None:
    first = start()
    first.wait_until(lambda: first.leads, "leading")
    second = start()
    second.wait_until(lambda: second.ready, "ready")
    first.process.kill()
    first.process.wait()
    renewed = at(bed, namespace, "renewTime")
    second.wait_until(lambda: second.leads, "leading")
    took = (at(bed, namespace, "acquireTime") - renewed).total_seconds()
    assert took >= 15, f"took over after {took:.1f} s: before the lease was over"
    assert second.logged("became leader")[-1]["epoch"] > first.logged("became leader")[-1]["epoch"]
    assert holder(bed, namespace) == second.logged("became leader")[-1]["identity"]


@pytest.mark.fault("T08", "T09")
def test_a_hanging_api_server_costs_the_lead_but_not_the_process(bed: Bed, start: Start) -> None:
    operator = start()
    operator.wait_until(lambda: operator.leads, "leading")
    bed.processes.pause(API_SERVER)
    try:
        took = operator.wait_until(lambda: not operator.leads, "stepping down", seconds=20)
    finally:
        bed.processes.resume(API_SERVER)
    assert took < 15, f"led for {took:.1f} s without a renewal: another could have taken the lease"
    operator.wait_until(lambda: operator.leads, "leading again")
    assert operator.process.poll() is None


@pytest.mark.fault("T08")
async def test_a_restarted_api_server_is_watched_again(bed: Bed, start: Start, namespace: str) -> None:
    operator = start()
    operator.wait_until(lambda: operator.leads, "leading")
    bed.processes.restart(API_SERVER)
    await bed.control_plane.wait_api_ready()
    operator.wait_until(lambda: operator.leads, "leading again")
    bed.apply([vllm_service(namespace)])

    def noticed() -> bool:
        path = "jsonpath={.status.observedGeneration}"
        return bed.kubectl("get", "vllmservice", "chat", f"--namespace={namespace}", "-o", path) == "1"

    operator.wait_until(noticed, "noticing a service that was created since")
    assert operator.process.poll() is None


def test_an_account_without_rights_is_told_which_one_is_missing(bed: Bed, start: Start, namespace: str) -> None:
    bed.kubectl("create", "serviceaccount", "nobody", f"--namespace={namespace}")
    operator = start(kubeconfig=bed.service_account_kubeconfig(namespace, "nobody"))
    assert operator.ends(within=PATIENCE) == 1
    assert "cannot list resource" in operator.output().splitlines()[-1]
    assert "Traceback" not in operator.output()


def test_an_address_in_use_is_named(start: Start) -> None:
    first = start()
    first.wait_until(lambda: first.ready, "ready")
    second = start(listen=first.address)
    assert second.ends(within=PATIENCE) == 1
    last = second.output().splitlines()[-1]
    assert "probes" in last
    assert first.address.rpartition(":")[2] in last


def test_a_watch_that_dies_ends_the_process_in_one_line(bed: Bed, start: Start) -> None:
    operator = start()
    operator.wait_until(lambda: operator.ready, "ready")
    try:
        bed.kubectl("delete", "crd", "vllmservices.vllm-autotuner.dev")
        assert operator.ends(within=PATIENCE) == 1
        assert operator.output().splitlines()[-1].startswith("vllm-autotuner: a watch failed (404")
        late = start()
        assert late.ends(within=PATIENCE) == 1
        assert "kubectl apply -f crds/" in late.output().splitlines()[-1]
    finally:
        install(bed)


def test_shards_serve_a_part_each_and_one_operator_serves_all_of_it_again(
    bed: Bed, start: Start, namespace: str
) -> None:
    """Each namespace is in one shard. When the number of shards changes, the next owner's writes count as later."""
    parts = {
        number: next(name for name in (f"{namespace}-{tried}" for tried in range(100)) if Shard(number, 2).has(name))
        for number in range(2)
    }
    for part in parts.values():
        bed.create_namespace(part)
        bed.apply([vllm_service(part)])
    shards = [start(more=("--namespace", parts[0], "--namespace", parts[1], "--shard", f"{n}/2")) for n in range(2)]

    def written(part: str, *, after: int = 0) -> bool:
        return epoch_of(bed, part) > after

    for number, shard in enumerate(shards):
        shard.wait_until(partial(leads, shard), "leading")
        shard.wait_until(partial(written, parts[number]), "written by its shard")
        assert holder(bed, f"{namespace}-{number}") != ""
        # What the metrics tell of a tick comes after its writes.
        shard.wait_until(partial(seen_by, shard), "telling of its services")
        assert seen_by(shard).endswith(" 1.0"), "the other one is in the other shard"
    before = {part: epoch_of(bed, part) for part in parts.values()}
    for shard in shards:
        shard.process.send_signal(signal.SIGTERM)
        assert shard.ends(within=PATIENCE) == 0, shard.output()
    # Epochs of different Leases are told apart by time, in units of four seconds: this fleet is handed over sooner than
    # any rollout could.
    time.sleep(5)
    whole = start(more=("--namespace", parts[0], "--namespace", parts[1]))
    whole.wait_until(partial(leads, whole), "leading")
    edit = json.dumps({"spec": {"engine": {"maxNumSeqs": 48}}})
    for part, epoch in before.items():
        bed.kubectl("patch", "vllmservice", "chat", f"--namespace={part}", "--type=merge", "-p", edit)
        whole.wait_until(partial(written, part, after=epoch), "written by the one that serves all")
