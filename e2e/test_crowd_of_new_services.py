"""A thousand services are created at once in the middle of two canaries, which end as they do alone (`make crowd`).

Apart from the tests that run side by side: on two cores the others starve beside it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import httpx
import pytest

from e2e.operator_account import vllm_service
from e2e.side_by_side import CROWD, Play, degrading, side_by_side
from e2e.stage import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.crowd]

CREATED: Final = 1_000
CREATED_AT_ONCE: Final = 16
NOWHERE: Final = {"spec": {"nodeSelector": {"example.com/pool": "full"}}}
"""Their pods wait for a node all the time: what they cost is the operator's and the API server's work alone."""
PATIENCE: Final = 600.0


@side_by_side(stage="new-services")
async def test_canaries_beside_a_thousand_new_services_end_as_they_do_alone(play: Play) -> None:
    path = f"/apis/vllm-autotuner.dev/v1alpha1/namespaces/{play.stage.namespace}/vllmservices"
    limit = asyncio.Semaphore(CREATED_AT_ONCE)

    async def create(number: int) -> None:
        async with limit:
            body = vllm_service(play.stage.namespace, f"new-{number:04}", podTemplate=NOWHERE)
            answer = await play.stage.api.post(path, json=body)
        assert answer.status_code == httpx.codes.CREATED, answer.text

    async def all_told() -> bool:
        found: list[Mapping[str, Any]] = (await play.stage.get(path))["items"]
        return sum("diagnosis" in each.get("status", {}) for each in found) == CREATED + len(play.names)

    for name, simulated in (("helped", {}), ("hurt", degrading())):
        await play.serves(name, simulated=simulated, clients=CROWD)
    await asyncio.gather(*(play.change_is(name, "Analyzing") for name in play.names))
    await asyncio.gather(*map(create, range(CREATED)))
    kept = await play.finished("helped", seconds=PATIENCE)
    undone = await play.finished("hurt", seconds=PATIENCE)
    await until("every new service has a status", all_told, seconds=PATIENCE, every=5)
    assert (kept["outcome"], kept["toValue"]) == ("Succeeded", "8"), kept
    assert (undone["outcome"], undone["toValue"]) == ("RolledBack", "8"), undone
    for name, seats in (("helped", 8), ("hurt", 4)):
        await play.rolled_out(name, seats=seats)
        assert len(await play.events(name, "ChangeStarted")) == 1
        play.served_all_along(name)
