"""Why a pod does not start, from its status and the log of its last attempt."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.control.test_looking import CRASHED, ENDED, NOW, Logs, causes_of, pod

from vllm_autotuner.control.read.pod_state import NEVER_READY_AFTER, UNSCHEDULABLE_AFTER, pods_view
from vllm_autotuner.control.read.views import PodView
from vllm_autotuner.engine.startup_log import StartupReason
from vllm_autotuner.observation.pod_starts import PodsView

LOGS = Path(__file__).parents[1] / "data/vllm-0.32/startup-failures"
WARM_UP = timedelta(seconds=60)
PENDING: dict[str, Any] = {"ready": False, "ready_since": None}
SECOND = timedelta(seconds=1)


async def viewed(*pods: PodView, logs: Logs | None = None) -> PodsView:
    return pods_view(pods, warm_up=WARM_UP, causes=await causes_of(pods, logs), now=NOW)


def created(ago: timedelta) -> dict[str, Any]:
    return PENDING | {"created": NOW - ago, "waiting_reason": None, "unschedulable": None, "last_termination": None}


@pytest.mark.parametrize(
    ("changed", "reason", "says"),
    [
        *(
            pytest.param(PENDING | {"waiting_reason": waiting}, StartupReason.IMAGE_PULL, waiting, id=waiting)
            for waiting in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
        ),
        pytest.param(
            created(UNSCHEDULABLE_AFTER) | {"unschedulable": "0/3 nodes: 3 Insufficient nvidia.com/gpu"},
            StartupReason.UNSCHEDULABLE,
            "Insufficient nvidia.com/gpu",
            id="no node for a minute",
        ),
        pytest.param(
            PENDING | {"waiting_reason": "CreateContainerConfigError"},
            StartupReason.UNKNOWN,
            "CreateContainerConfigError",
            id="a reason that we do not know is told as it is",
        ),
        pytest.param(created(NEVER_READY_AFTER), StartupReason.UNKNOWN, "not ready after 30 minutes", id="never ready"),
        pytest.param(
            CRASHED | {"last_termination": ENDED}, StartupReason.OUT_OF_MEMORY, "memory limit", id="killed by the host"
        ),
        pytest.param(
            CRASHED | {"last_termination": replace(ENDED, reason="Error", message="KeyError: 'layers.0'\n")},
            StartupReason.UNKNOWN,
            "KeyError: 'layers.0'",
            id="no log, but what the kubelet kept of it",
        ),
        pytest.param(
            CRASHED | {"last_termination": replace(ENDED, reason="Error"), "waiting_reason": "CrashLoopBackOff"},
            StartupReason.UNKNOWN,
            "exit code 137",
            id="no word at all: the exit code",
        ),
    ],
)
async def test_a_pod_that_cannot_start_says_why(changed: dict[str, Any], reason: StartupReason, says: str) -> None:
    view = await viewed(pod(**changed))
    (failing,) = view.failing
    assert failing.failure is not None
    assert failing.failure.reason is reason
    assert says in failing.failure.message
    assert view.ready == view.starting == ()


@pytest.mark.parametrize(
    ("log", "reason", "length"),
    [
        pytest.param("kv-too-small.log", StartupReason.INSUFFICIENT_KV_CACHE, 1152, id="the cause stands 6 KiB above"),
        pytest.param("fp8-on-avx2.log", StartupReason.KV_TYPE_UNSUPPORTED, None, id="KV type, 9 KiB above"),
        pytest.param("bad-flag.log", StartupReason.INVALID_FLAG, None, id="a flag"),
        pytest.param("tp3.log", StartupReason.HEADS_NOT_DIVISIBLE, None, id="heads"),
        pytest.param("len-over-model.log", StartupReason.LENGTH_OVER_MODEL, 8192, id="length"),
    ],
)
async def test_a_real_log_beats_the_termination_message(log: str, reason: StartupReason, length: int | None) -> None:
    text = (LOGS / log).read_text(encoding="utf-8")
    crashed = CRASHED | {"last_termination": replace(ENDED, reason="Error", message=text[-2048:])}
    (failing,) = (await viewed(pod(**crashed), logs=Logs(chat_0_before=text))).failing
    assert failing.failure is not None
    assert (failing.failure.reason, failing.failure.suggested_max_model_len) == (reason, length)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(created(timedelta(minutes=5)), id="loading for five minutes"),
        pytest.param(created(NEVER_READY_AFTER - SECOND), id="loading for nearly half an hour"),
        pytest.param(
            created(UNSCHEDULABLE_AFTER - SECOND) | {"unschedulable": "0/3 nodes"}, id="no node for less than a minute"
        ),
        pytest.param(PENDING | {"restarts": 1, "created": NOW}, id="no end is told of"),
    ],
)
async def test_a_pod_that_only_starts_has_not_failed(changed: dict[str, Any]) -> None:
    view = await viewed(pod(**changed))
    assert (len(view.starting), view.failing) == (1, ())


async def test_pods_that_serve_or_go_away() -> None:
    view = await viewed(pod("chat-0"), pod("chat-1", deleting=True, **CRASHED))
    assert [(start.name, start.ready_for) for start in view.pods] == [("chat-0", 300.0)]
    assert view.warm_up == 60.0


async def test_one_log_of_each_configuration_is_read() -> None:
    logs = Logs(chat_0_before="KeyError: 'a'\n", chat_2_before="KeyError: 'b'\n")
    crashed = [pod(f"chat-{number}", **CRASHED) for number in range(2)]
    old = pod("chat-2", **CRASHED | {"config_hash": "old"})
    view = await viewed(*crashed, old, logs=logs)
    assert logs.asked == ["chat_0_before", "chat_2_before"]
    assert [start.failure.message for start in view.failing if start.failure] == ["KeyError: 'a'"] * 2 + [
        "KeyError: 'b'"
    ]


async def test_a_crash_after_serving_is_not_read_as_a_failed_start() -> None:
    served = "INFO:     Application startup complete.\nRuntimeError: CUDA error: an illegal memory access\n"
    end = replace(ENDED, reason="Error", message="RuntimeError: CUDA error: an illegal memory access\n")
    crashed = CRASHED | {"last_termination": end}
    (failing,) = (await viewed(pod(**crashed), logs=Logs(chat_0_before=served))).failing
    assert failing.failure is not None
    assert failing.failure.message == "chat-0 terminated with exit code 137 (2 restart(s))"
