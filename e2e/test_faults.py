"""What goes wrong around a change, on the real control plane: people, neighbours and engines, all at the same time."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from e2e import odd_engines
from e2e.bed import DEFAULT_IMAGES, Bed
from e2e.monitor import Monitor
from e2e.side_by_side import CROWD, Play, Playing, degrading, selected_scenes, side_by_side
from e2e.stage import SIMULATED_ENGINE, Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMESPACE = "faults"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def playing(bed: Bed, request: pytest.FixtureRequest) -> AsyncIterator[Playing]:
    """One stage, and on it every scene at once."""
    bed.set_images([*DEFAULT_IMAGES, SIMULATED_ENGINE, *odd_engines.ROWS])
    bed.create_namespace(NAMESPACE)
    playing = Playing()
    try:
        async with Stage(bed, NAMESPACE, interval="1s", window="6s") as stage, Monitor(stage) as monitor:
            stage.start_operator()
            for scene in selected_scenes(request):
                playing.start(scene, Play(stage, monitor))
            yield playing
            await playing.end()
    finally:
        bed.delete_namespace(NAMESPACE)
        bed.set_images(DEFAULT_IMAGES)


@side_by_side
async def test_a_change_that_helps_is_kept(play: Play) -> None:
    """What the faults are compared with."""
    await play.serves("helped", clients=CROWD)
    entry = await play.finished("helped")
    assert (entry["outcome"], entry["fromValue"], entry["toValue"]) == ("Succeeded", "4", "8")
    await play.rolled_out("helped", seats=8)
    assert len(await play.events("helped", "ChangeStarted")) == 1
    assert play.monitor.states("helped") == ["Provisioning", "Verifying", "WarmingUp", "Analyzing"]
    play.served_all_along("helped")


@side_by_side
async def test_a_change_that_hurts_is_rolled_back_and_remembered(play: Play) -> None:
    await play.serves("hurt", clients=CROWD, simulated=degrading())
    entry = await play.finished("hurt")
    assert (entry["outcome"], entry["toValue"]) == ("RolledBack", "8")
    await play.rolled_out("hurt", seats=4)
    status = await play.status("hurt")
    assert [one["candidate"] for one in status["failureMemory"]] == ["maxNumSeqs=8"]
    assert len(await play.events("hurt", "ChangeStarted")) == 1
    play.served_all_along("hurt")
