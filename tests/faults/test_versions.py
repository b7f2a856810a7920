"""Another version of the operator takes over, with services idle and in the middle of a change (T41)."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.control.cluster_model import Body, Load
from tests.control.loop_bed import Bed, bed, queueing, slow_beyond_64
from tests.control.test_canary import until

from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.workload import rendering
from vllm_autotuner.workload.hashing import template_hash
from vllm_autotuner.workload.labels import CONFIG_HASH, HASH_VERSION

Upgrade = Callable[[Bed], None]


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """Until it is called, the operator is one whose rendering of the same wishes gives other templates."""

    def former(template: Mapping[str, Any]) -> str:
        return f"former-{template_hash(template)}"

    monkeypatch.setattr(rendering, "RENDERING_VERSION", 0)
    monkeypatch.setattr(rendering, "template_hash", former)

    def upgrade(found: Bed) -> None:
        monkeypatch.undo()
        found.restart()

    return upgrade


def generation(found: Bed, name: str = "chat") -> int:
    return int(found.deployment(name)["metadata"]["generation"])


@pytest.mark.fault("T41")
async def test_an_upgrade_rolls_no_pod_of_twenty_idle_services(upgrade: Upgrade) -> None:
    names = [f"chat-{number}" for number in range(20)]
    found = bed(*names, load=lambda seats: Load())
    await found.ticks(8)
    before = {name: found.deployment(name)["spec"]["template"] for name in names}
    upgrade(found)
    await found.ticks(8)
    assert {name: found.deployment(name)["spec"]["template"] for name in names} == before
    assert all(template["metadata"]["annotations"][HASH_VERSION] == "0" for template in before.values())
    writes = found.api.requests["status"]
    await found.ticks(8)
    assert found.api.requests["status"] == writes


@pytest.mark.fault("T41")
async def test_what_is_asked_for_after_an_upgrade_is_rendered_by_the_new_version(upgrade: Upgrade) -> None:
    found = bed(load=lambda seats: Load())
    await found.ticks(8)
    upgrade(found)
    await found.ticks(4)

    def edit(body: Body) -> None:
        body["spec"]["engine"]["maxNumSeqs"] = 48

    found.api.edit("chat", edit)
    await found.ticks(8)
    assert (found.seats(), generation(found)) == (48, 2)
    assert not found.deployment()["metadata"]["annotations"][CONFIG_HASH].startswith("former")


@pytest.mark.fault("T41")
async def test_a_fresh_baseline_beside_pods_of_the_former_version_is_not_waited_for(upgrade: Upgrade) -> None:
    found = bed(spec={"replicas": 3}, load=lambda seats: Load())
    await found.ticks(8)
    upgrade(found)
    await found.ticks(4)
    found.api.load = queueing
    await until(found, ChangeState.PROVISIONING)
    await until(found, ChangeState.VERIFYING, at_most=4)
    change = found.change()
    assert change is not None
    assert change.baseline_ref is not None
    await until(found, None)
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUCCEEDED]


@pytest.mark.fault("T41")
@pytest.mark.parametrize("moment", range(3, 24, 2))
@pytest.mark.parametrize(
    ("load", "outcome", "seats"),
    [
        pytest.param(queueing, Outcome.SUCCEEDED, 128, id="a change that helps"),
        pytest.param(slow_beyond_64, Outcome.ROLLED_BACK, 64, id="a change that harms"),
    ],
)
async def test_an_upgrade_in_the_middle_of_a_change_lets_it_come_to_its_end(
    upgrade: Upgrade, moment: int, load: Callable[[int], Load], outcome: Outcome, seats: int
) -> None:
    found = bed(load=load)
    await found.ticks(moment)
    rolled = generation(found)
    upgrade(found)
    await found.ticks(1)
    assert generation(found) <= rolled + 1
    await found.ticks(36)
    assert ([entry.outcome for entry in found.status().history], found.seats()) == ([outcome], seats)
    assert generation(found) == (2 if outcome is Outcome.SUCCEEDED else 3)
    assert found.told.count("ChangeStarted") == 1
