"""A crash at a chosen write happens once, however many writes are on their way when the operator dies."""

from dataclasses import dataclass, field
from typing import cast

import httpx
import pytest

from e2e.api_proxy import Write
from e2e.crashing import Crashes
from e2e.side_by_side import Play

WRITE = Write(method="POST", path="/apis/events.k8s.io/v1/namespaces/shop/events", body={}, answer={}, heard=True)
"""Of an operator whose connection still looks open."""


@dataclass(slots=True)
class Stage:
    """Counts how often the operator is killed and started; there is one Lease to delete per start."""

    namespace: str = "shop"
    happened: list[str] = field(default_factory=list)
    leases: int = 1

    @property
    def api(self) -> "Stage":
        """The API server."""
        return self

    def kill_operator(self) -> None:
        self.happened.append("killed")

    def start_operator(self, *_: str) -> None:
        self.happened.append("started")
        self.leases = 1

    async def delete(self, path: str) -> httpx.Response:
        self.leases -= 1
        return httpx.Response(200 if self.leases == 0 else 404, request=httpx.Request("DELETE", f"http://api{path}"))


@dataclass(slots=True)
class OneStage:
    stage: Stage = field(default_factory=Stage)


@pytest.mark.parametrize("answered", [False, True])
async def test_writes_that_end_in_the_same_moment_are_one_crash(answered: bool) -> None:
    play = OneStage()
    crashes = Crashes(cast(Play, play), answered, lambda write: True)

    lost = crashes.after_a_write(WRITE)
    assert crashes.before_a_request() is answered
    lost_too = crashes.after_a_write(WRITE)
    await crashes.over()

    assert (lost, lost_too) == (not answered, False)
    assert not crashes.before_a_request(), "the operator that was started again is killed at its first request"
    assert play.stage.happened == ["killed", "started"]


async def test_an_operator_that_was_started_again_can_be_killed_again() -> None:
    play = OneStage()
    crashes = Crashes(cast(Play, play), False, lambda write: True)

    for _ in range(2):
        assert crashes.after_a_write(WRITE)
        await crashes.over()

    assert play.stage.happened == ["killed", "started"] * 2
