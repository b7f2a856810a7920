"""From objects and metrics to what a tick sees: counts that are about the past, pods that come and go, logs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from tests.builders import named, observation
from tests.control.cluster_model import Load, engine_series
from tests.control.objects import deployment_object, pod_object
from tests.workload.services import service

from vllm_autotuner.api.annotations import APPROVE, PAUSE
from vllm_autotuner.change.machine import Rollout
from vllm_autotuner.change.verification import Confirmed, NotEffective, Undecided
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import NotFound
from vllm_autotuner.control.decide.annotation_commands import approved_id, is_paused
from vllm_autotuner.control.read.crash_causes import CrashCauses
from vllm_autotuner.control.read.pod_logs import PodLogs
from vllm_autotuner.control.read.pod_state import pods_view
from vllm_autotuner.control.read.views import DeploymentView, PodView, Termination, deployment_view, pod_view
from vllm_autotuner.control.read.workload_state import YOUNG, observed, rollout_of, verification_of
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.reading import Absence, NoData
from vllm_autotuner.observation.snapshot import EngineKey, FleetSnapshot

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Logs:
    """A Cluster that has logs only: by pod, and whether of the instance before the last restart."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.asked: list[str] = []

    async def pod_log(self, namespace: str, pod: str, container: str, *, previous: bool = False, **cut: int) -> str:
        name = f"{pod.replace('-', '_')}{'_before' if previous else ''}"
        self.asked.append(name)
        if name not in self.texts:
            raise NotFound("no such log", reason="NotFound", status=404)
        return self.texts[name]


def pod_logs(logs: Logs | None = None) -> PodLogs:
    return PodLogs(cast(Cluster, logs or Logs()), monotonic=NOW.timestamp)


async def causes_of(pods: Sequence[PodView], logs: Logs | None = None) -> CrashCauses:
    """What the logs say about the crashes of these pods."""
    causes = CrashCauses(pod_logs(logs))
    await causes.look([pods])
    return causes


def pod(name: str = "chat-0", **changed: Any) -> PodView:
    """A ready pod of configuration abc, five minutes old."""
    given = pod_view(pod_object(name))
    fresh = replace(given, restarts=0, last_termination=None, ready_since=NOW - timedelta(minutes=5))
    return replace(fresh, **changed)


ENDED = Termination(exit_code=137, reason="OOMKilled", message="", finished_at=None)
CRASHED: dict[str, Any] = {"ready": False, "ready_since": None, "restarts": 2, "last_termination": ENDED}


# The rollout


async def rollout(deployment: DeploymentView | None, pods: Sequence[PodView], *, asked: Logs | None = None) -> Rollout:
    causes = await causes_of(pods, asked)
    starts = pods_view(pods, warm_up=timedelta(seconds=60), causes=causes, now=NOW)
    return rollout_of(deployment, pods, starts=starts)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    deployment: dict[str, Any] = field(default_factory=dict)
    pods: tuple[PodView, ...] = (pod("chat-0"), pod("chat-1"))
    rolled_out: bool = True
    settled: bool = True


CASES = (
    Case(id="two of two are of it and ready"),
    Case(
        id="the counts are about the spec before",
        deployment={"observedGeneration": 0},
        rolled_out=False,
        settled=False,
    ),
    Case(
        id="one is still of the old template",
        deployment={"updatedReplicas": 1},
        rolled_out=False,
        settled=False,
    ),
    Case(
        id="an old one has not gone yet",
        deployment={"replicas": 3, "updatedReplicas": 2, "readyReplicas": 3},
        rolled_out=False,
        settled=False,
    ),
    Case(id="one is not ready", deployment={"readyReplicas": 1}, settled=False),
    Case(id="one is missing", deployment={"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}, settled=False),
    Case(id="the watch has not told of the second pod yet", pods=(pod("chat-0"),), settled=False),
    Case(
        id="a pod that is going away does not count",
        pods=(pod("chat-0"), pod("chat-1", deleting=True)),
        settled=False,
    ),
    Case(
        id="a pod of another configuration does not count",
        pods=(pod("chat-0"), pod("chat-1", config_hash="old")),
        settled=False,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_rolled_out_and_settled(case: Case) -> None:
    found = await rollout(deployment_view(deployment_object(**case.deployment)), case.pods)
    assert (found.rolled_out, found.settled) == (case.rolled_out, case.settled)
    assert (found.config_hash, found.replicas) == ("abc", 2)


async def test_no_deployment_is_nothing_that_serves() -> None:
    found = await rollout(None, [pod()])
    assert (found.config_hash, found.rolled_out, found.settled, found.ready) == (None, False, False, 0)


async def test_the_newest_ready_pod_is_known() -> None:
    young = NOW - timedelta(seconds=20)
    pods = [pod("chat-0"), pod("chat-1", ready_since=young), pod("chat-2", ready=False, ready_since=None)]
    found = await rollout(deployment_view(deployment_object()), pods)
    assert found.newest_since == young
    none = await rollout(deployment_view(deployment_object()), [])
    assert none.newest_since is None


async def test_a_start_took_as_long_as_the_pod_that_was_created_last_says() -> None:
    pods = [
        pod("chat-0", created=NOW - timedelta(hours=1), ready_since=NOW),
        pod("chat-1", created=NOW - timedelta(minutes=9), ready_since=NOW - timedelta(minutes=5)),
        pod("chat-2", created=NOW - timedelta(minutes=8), ready_since=NOW - timedelta(minutes=1), restarts=1),
        pod("chat-3", created=NOW - timedelta(minutes=1), ready=False, ready_since=None),
    ]
    found = await rollout(deployment_view(deployment_object()), pods)
    assert found.start_up == timedelta(minutes=4)
    assert (await rollout(deployment_view(deployment_object()), [])).start_up is None


async def test_a_pod_that_cannot_be_created_has_no_place_either() -> None:
    quota = 'pods "chat-77b-x" is forbidden: exceeded quota: compute'
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": quota}
    found = await rollout(deployment_view(deployment_object(conditions=[failure])), [pod("chat-0")])
    assert found.unschedulable == quota


async def test_no_place_for_a_pod_is_said_by_the_scheduler() -> None:
    pods = [pod("chat-0"), pod("chat-1", ready=False, unschedulable="0/3 nodes are available")]
    found = await rollout(deployment_view(deployment_object()), pods)
    assert found.unschedulable == "0/3 nodes are available"
    old = [pod("chat-0"), pod("chat-1", config_hash="old", unschedulable="0/3 nodes are available")]
    assert (await rollout(deployment_view(deployment_object()), old)).unschedulable == ""


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("changed", "logs", "cause"),
    [
        pytest.param(CRASHED, {"chat_0_before": OUT_OF_MEMORY}, "OutOfMemory: ", id="the log before the restart"),
        pytest.param(
            CRASHED, {"chat_0": OUT_OF_MEMORY}, "OutOfMemory: ", id="the log of now, when that is all there is"
        ),
        pytest.param(CRASHED, {}, "OutOfMemory: the container exceeded its memory limit", id="no log, but a reason"),
        pytest.param(
            CRASHED | {"last_termination": replace(ENDED, reason="Error")},
            {},
            "Unknown: chat-0 terminated with exit code 137 (2 restart(s))",
            id="no log at all",
        ),
        pytest.param({}, {"chat_0": OUT_OF_MEMORY}, "", id="a ready pod has not crashed, whatever its log says"),
        pytest.param(
            {"restarts": 1, "last_termination": ENDED}, {}, "", id="a pod that came back has not crashed for good"
        ),
        pytest.param(CRASHED | {"restarts": 0}, {}, "", id="a first start that has not ended"),
        pytest.param(CRASHED | {"last_termination": None}, {}, "", id="a pod that is only not ready"),
        pytest.param(CRASHED | {"config_hash": "old"}, {}, "", id="a pod of the old configuration"),
        pytest.param(CRASHED | {"deleting": True}, {}, "", id="a pod that is going away"),
    ],
)
async def test_why_a_new_pod_does_not_start(changed: dict[str, Any], logs: dict[str, str], cause: str) -> None:
    asked = Logs(**logs)
    found = await rollout(deployment_view(deployment_object()), [pod(**changed)], asked=asked)
    assert found.crashed.startswith(cause)
    assert bool(found.crashed) is bool(cause)
    fell = bool(cause) or changed.get("config_hash") == "old"
    assert bool(asked.asked) is fell, "logs are read for crashes only"


STARTUP_FAILURES = Path(__file__).parents[1] / "data/vllm-0.32/startup-failures"


@pytest.mark.parametrize(
    ("log", "lacked_memory", "refused"),
    [
        pytest.param("kv-too-small.log", True, False, id="a pool that is too small is a lack of memory"),
        pytest.param("fp8-on-avx2.log", False, True, id="no fp8 here, at any time"),
        pytest.param("tp3.log", False, True, id="heads do not divide, at any time"),
        pytest.param("len-over-model.log", False, True, id="the model was made for less, at any time"),
        pytest.param("bad-flag.log", False, True, id="no such flag, at any time"),
    ],
)
async def test_what_a_real_log_says_about_another_attempt(log: str, lacked_memory: bool, refused: bool) -> None:
    asked = Logs(chat_0_before=(STARTUP_FAILURES / log).read_text(encoding="utf-8"))
    found = await rollout(deployment_view(deployment_object()), [pod(**CRASHED)], asked=asked)
    assert (found.lacked_memory, found.refused) == (lacked_memory, refused)


async def test_an_exit_without_a_code_is_said_so() -> None:
    unknown = pod(**CRASHED | {"last_termination": replace(ENDED, reason="Error", exit_code=None)})
    found = await rollout(deployment_view(deployment_object()), [unknown])
    assert found.crashed == "Unknown: chat-0 terminated with exit code unknown (2 restart(s))"


async def test_a_pod_that_serves_again_says_how_it_had_ended() -> None:
    back = pod(restarts=1, last_termination=ENDED)
    found = await rollout(deployment_view(deployment_object()), [pod("chat-1"), back])
    assert found.died == "chat-0 terminated with exit code 137 (1 restart(s))"
    assert (await rollout(deployment_view(deployment_object()), [pod()])).died == ""
    elsewhere = replace(back, config_hash="of another one")
    assert (await rollout(deployment_view(deployment_object()), [elsewhere])).died == ""


# The engines' own account


VERIFYING = {
    "activeChange": {
        "id": "c1",
        "generation": 1,
        "knob": "maxNumSeqs",
        "toValue": "8",
        "from": {"maxNumSeqs": 4},
        "to": {"maxNumSeqs": 8, "configHash": "abc"},
        "state": "Verifying",
    }
}
SAYS_8 = "INFO [api_utils.py:286] non-default args: {'model': 'example/tiny', 'max_num_seqs': 8}\n"


async def verified(*pods: PodView, logs: Logs, status: dict[str, Any] | None = None) -> object:
    given = service(status=VERIFYING if status is None else status)
    return await verification_of(given, pods, logs=pod_logs(logs), observation=observation())


async def test_the_start_up_log_confirms() -> None:
    assert isinstance(await verified(pod(), logs=Logs(chat_0=SAYS_8)), Confirmed)


@pytest.mark.parametrize(
    ("log", "answer"),
    [
        pytest.param({"chat_0": SAYS_8.replace("8}", "4}")}, NotEffective, id="another value"),
        pytest.param({"chat_0": "INFO starting\n"}, Undecided, id="a log without the line"),
        pytest.param({}, Undecided, id="no log"),
    ],
)
async def test_what_the_log_does_not_confirm(log: dict[str, str], answer: type[object]) -> None:
    assert isinstance(await verified(pod(), logs=Logs(**log)), answer)


async def test_only_ready_pods_of_the_new_configuration_are_asked() -> None:
    logs = Logs(chat_0=SAYS_8)
    others = (
        pod("chat-1", config_hash="old"),
        pod("chat-2", ready=False),
        pod("chat-3", deleting=True),
    )
    assert isinstance(await verified(pod(), *others, logs=logs), Confirmed)
    assert logs.asked == ["chat_0"]


async def test_no_log_is_read_while_nothing_is_verified() -> None:
    logs = Logs(chat_0=SAYS_8)
    assert isinstance(await verified(pod(), logs=logs, status={}), Undecided)
    analyzing = {"activeChange": VERIFYING["activeChange"] | {"state": "Analyzing"}}
    assert isinstance(await verified(pod(), logs=logs, status=analyzing), Undecided)
    assert logs.asked == []


async def test_unreadable_arguments_confirm_nothing() -> None:
    broken = pod(args=("--max-num-seqs",))
    assert isinstance(await verified(broken, logs=Logs(chat_0=SAYS_8)), Undecided)
    assert isinstance(await verified(broken, pod("chat-1"), logs=Logs(chat_0=SAYS_8, chat_1=SAYS_8)), Undecided)


# The metrics of these pods


def snapshot(*names: str, interval: float | None = 2.0) -> FleetSnapshot:
    at = NOW.timestamp()
    engines = {EngineKey("prod", name, "0"): engine_series(Load(), at=at) for name in names}
    return FleetSnapshot(at=at, state_window=30.0, scrape_interval=interval, engines=engines)


def reporting(*pods: PodView, of: FleetSnapshot) -> tuple[list[str], int | None]:
    found = observed(of, pods, now=NOW)
    return [one.key.pod for one in found.engines], found.expected


def test_only_ready_pods_of_this_service_are_looked_at() -> None:
    of = snapshot("chat-0", "chat-1", "chat-2", "other-0")
    assert reporting(pod("chat-0"), pod("chat-1", ready=False), pod("chat-2", deleting=True), of=of) == (["chat-0"], 1)


def test_the_same_name_in_another_namespace_is_another_pod() -> None:
    assert reporting(pod("chat-0", namespace="dev"), of=snapshot("chat-0")) == ([], 1)


@pytest.mark.parametrize(
    ("age", "interval", "expected"),
    [
        pytest.param(YOUNG, 2.0, 0, id="a young pod is not missed yet"),
        pytest.param(YOUNG + timedelta(seconds=1), 2.0, 1, id="an older one is"),
        pytest.param(timedelta(seconds=180), 60.0, 0, id="slow scrapes give it three of them"),
        pytest.param(timedelta(seconds=181), 60.0, 1, id="and not more"),
        pytest.param(YOUNG + timedelta(seconds=1), None, 1, id="without a known interval"),
    ],
)
def test_which_pods_ought_to_report(age: timedelta, interval: float | None, expected: int) -> None:
    young = pod("chat-1", ready_since=NOW - age)
    assert reporting(young, of=snapshot("chat-0", interval=interval)) == ([], expected)


def gone_silent(name: str = "chat-0", *, seconds_ago: float) -> FleetSnapshot:
    """Its last sample is this old: Prometheus has lost its target."""
    at = NOW.timestamp()
    engines = {EngineKey("prod", name, "0"): engine_series(Load(), at=at - seconds_ago)}
    return FleetSnapshot(at=at, state_window=30.0, scrape_interval=2.0, engines=engines)


@pytest.mark.parametrize(
    ("container_started", "expected"),
    [
        pytest.param(timedelta(minutes=10), 1, id="the same process has reported: its readiness probe failed once"),
        pytest.param(timedelta(seconds=12), 0, id="a new process was not scraped yet"),
        pytest.param(None, 0, id="without a known start"),
    ],
)
async def test_a_pod_that_is_ready_again_and_silent_is_missed_when_it_has_reported_before(
    container_started: timedelta | None, expected: int
) -> None:
    started = None if container_started is None else NOW - container_started
    again = pod(ready_since=NOW - timedelta(seconds=3), container_started_at=started)
    starts = pods_view([again], warm_up=timedelta(seconds=60), causes=await causes_of([again]), now=NOW)
    found = observed(gone_silent(seconds_ago=30), [again], now=NOW, starts=starts)
    assert (found.engines, found.silent, found.expected) == ((), ("chat-0",), expected)
    missed = DiagnosisClass.METRICS_BLIND if expected else DiagnosisClass.COLD_START
    assert named(found).primary is missed


def test_a_source_that_failed_says_nothing_about_pods() -> None:
    failed = replace(snapshot("chat-0"), error=NoData(Absence.PROVIDER_ERROR, "503"))
    found = observed(failed, [pod()], now=NOW)
    assert (found.engines, found.problem) == ((), failed.error)


# What people say


@pytest.mark.parametrize(
    ("spec", "annotation", "paused"),
    [
        (False, None, False),
        (True, None, True),
        (True, "false", True),
        (False, "true", True),
        (False, "false", False),
        (False, " False\n", False),
        (False, "", True),
        (False, "no", True),
        (False, "flase", True),
    ],
)
def test_whether_a_person_said_stop(spec: bool, annotation: str | None, paused: bool) -> None:
    annotations = {} if annotation is None else {PAUSE: annotation}
    assert is_paused(service({"paused": spec}, metadata={"annotations": annotations})) is paused


@pytest.mark.parametrize(
    ("mode", "annotation", "approved"),
    [
        ("Approve", " 1a2b3c4d ", "1a2b3c4d"),
        ("Approve", None, ""),
        ("Automatic", "1a2b3c4d", ""),
        ("Recommend", "1a2b3c4d", ""),
        ("Off", "1a2b3c4d", ""),
    ],
)
def test_what_a_person_approved(mode: str, annotation: str | None, approved: str) -> None:
    annotations = {} if annotation is None else {APPROVE: annotation}
    found = service({"tuning.mode": mode}, metadata={"annotations": annotations})
    assert approved_id(found, mode=found.spec.tuning.mode) == approved
