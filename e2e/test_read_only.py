"""An operator that only looks: what `make read-only` shows for ten minutes, in a few ticks."""

import pytest

from e2e.bed import Bed
from e2e.read_only import looks_on, opened


@pytest.mark.asyncio(loop_scope="session")
async def test_a_read_only_operator_recommends_in_its_log_writes_nothing_and_is_forbidden_nothing(
    bed: Bed, engines: None, namespace: str
) -> None:
    async with opened(bed, namespace) as pilot:
        await looks_on(pilot)
