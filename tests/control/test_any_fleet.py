"""A fixed selection of random stories: the same on every machine and in every run. `make soak` plays others."""

import logging

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.control.any_fleet import STEPS_OF_A_STORY, AnyFleet
from tests.examples import examples

from vllm_autotuner.control.decide import figures_refresh

STEPS = examples(1_250, in_soak=5_000)


@pytest.mark.parametrize("large", [False, True], ids=["as it is", "as a part of a large fleet"])
def test_whatever_happens_to_a_fleet_every_invariant_holds(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        # Where so many services refresh their figures that each does rarely, calm ones are not decided in each tick.
        monkeypatch.setattr(figures_refresh, "WRITES_PER_SECOND", 1e-6)
    chosen = settings(
        max_examples=-(-STEPS // STEPS_OF_A_STORY),
        stateful_step_count=STEPS_OF_A_STORY,
        deadline=None,
        derandomize=True,
        database=None,
    )
    before, AnyFleet.stories = logging.root.manager.disable, 0
    logging.disable(logging.CRITICAL)  # a third of the time, for what nobody reads
    try:
        run_state_machine_as_test(AnyFleet, settings=chosen)
    finally:
        logging.disable(before)
    assert AnyFleet.stories * STEPS_OF_A_STORY >= STEPS
