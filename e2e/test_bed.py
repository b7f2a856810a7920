"""The whole bed: by hand from the command line, and when its node fails."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.bed import Bed, recorded_processes
from e2e.bed_command import holder_of, read_state
from e2e.control_plane import ControlPlaneSettings
from e2e.errors import BedError
from e2e.processes import PATIENCE, Identity
from e2e.prometheus import run

REPOSITORY = Path(__file__).resolve().parent.parent


class ByHand:
    """Runs `python -m e2e.bed_command` on a state folder of its own, as a person would."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    def __call__(self, action: str) -> tuple[int, str, str]:
        result = subprocess.run(
            [sys.executable, "-m", "e2e.bed_command", action, f"--state-dir={self.state_dir}"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return result.returncode, result.stdout, result.stderr

    def everything(self) -> list[Identity]:
        holder = holder_of(self.state_dir)
        assert holder is not None
        return [holder, *recorded_processes(self.state_dir / "bed.json").values()]


@pytest.fixture
def by_hand(binaries: Mapping[str, Path], tmp_path: Path) -> Iterator[ByHand]:
    assert binaries
    by_hand = ByHand(tmp_path / "state")
    yield by_hand
    by_hand("down")


def wait_until(condition: Callable[[], bool], *, seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"seen after {PATIENCE:.0f} s: {seen()}"
        time.sleep(0.05)


def test_by_hand_up_status_down(by_hand: ByHand, binaries: Mapping[str, Path]) -> None:
    assert by_hand("status") == (3, "no bed runs\n", "")

    code, out, err = by_hand("up")
    assert code == 0, err
    state = read_state(by_hand.state_dir)
    assert f"export KUBECONFIG={state['kubeconfig']}" in out
    node = run([binaries["kubectl"], f"--kubeconfig={state['kubeconfig']}", "get", "nodes", "--output=name"])
    assert node == "node/bed\n"
    everything = by_hand.everything()
    assert len(everything) == 7

    code, _, err = by_hand("up")
    assert (code, err.startswith("error: a bed runs already")) == (1, True)

    code, out, err = by_hand("down")
    assert (code, out) == (0, "the bed is stopped, nothing of it is left\n"), err
    assert [process for process in everything if process.alive()] == []
    assert by_hand("down") == (0, "no bed runs\n", "")


def test_a_killed_holder_takes_its_bed_with_it_and_the_next_one_starts(by_hand: ByHand) -> None:
    code, _, err = by_hand("up")
    assert code == 0, err
    everything = by_hand.everything()

    os.kill(everything[0].pid, signal.SIGKILL)
    wait_until(
        lambda: not any(process.alive() for process in everything),
        seen=lambda: [process.pid for process in everything if process.alive()],
    )

    assert by_hand("status")[0] == 3
    code, _, err = by_hand("up")
    assert code == 0, err


async def test_a_second_bed_on_the_same_folder_is_refused_and_the_first_stays(bed: Bed) -> None:
    before = recorded_processes(bed.state.path)

    with pytest.raises(BedError, match="a bed runs already"):
        async with Bed(state_dir=bed.state_dir):
            pass

    assert recorded_processes(bed.state.path) == before
    assert bed.kubectl("get", "nodes", "--output=name") == "node/bed\n"


def node_condition(bed: Bed) -> str:
    node: dict[str, Any] = json.loads(bed.kubectl("get", "node", "bed", "--output=json"))
    return next(str(entry["status"]) for entry in node["status"]["conditions"] if entry["type"] == "Ready")


@pytest.mark.usefixtures("binaries")
async def test_a_dead_node_is_noticed_within_seconds_and_comes_back(tmp_path: Path) -> None:
    async with Bed(state_dir=tmp_path, settings=ControlPlaneSettings(fast_node_monitor=True)) as bed:
        wait_until(lambda: node_condition(bed) == "True", seen=lambda: node_condition(bed))

        bed.stop_agent(crash=True)
        deadline = time.monotonic() + 40
        while (status := node_condition(bed)) != "Unknown":
            assert time.monotonic() < deadline, f"Ready={status} 40 s after the node died"
            await asyncio.sleep(0.2)

        await bed.start_agent()
        # Seen usable once: on a busy machine its next heartbeat may be late, and it is Unknown for a moment.
        wait_until(lambda: node_condition(bed) == "True", seen=lambda: node_condition(bed))
