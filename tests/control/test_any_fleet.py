"""A fixed selection of random stories: the same on every machine and in every run. `make soak` plays others."""

import logging

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.control.any_fleet import STEPS_OF_A_STORY, AnyFleet
from tests.examples import examples

STEPS = examples(2_500, in_soak=10_000)


def test_whatever_happens_to_a_fleet_every_invariant_holds() -> None:
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
