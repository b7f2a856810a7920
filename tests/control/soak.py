"""`make soak STEPS=1000000`: random stories of the fleet loop, each batch with a seed of its own, until one fails.

Apart from `test_any_fleet.py`, whose stories are always the same. The seed is printed before its batch is played:
`SEED=...` plays that batch again, and a failure is shrunk to its shortest story.
"""

import argparse
import logging
import secrets
import sys
from collections.abc import Sequence
from typing import Final

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.control.any_fleet import STEPS_OF_A_STORY, AnyFleet

BATCH: Final = 200
"""Stories that share a seed: a few minutes, so that a failure can be played again soon."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play; the exit code is 1 when a story fails, whose steps stand above."""
    parser = argparse.ArgumentParser(prog="python -m tests.control.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="how many steps at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="play the batch of this seed, and no other")
    asked = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # what the operator logs of a random story is no news
    played = 0
    while played < asked.steps:
        number = asked.seed if asked.seed is not None else secrets.randbelow(2**32)
        stories = min(BATCH, -(-(asked.steps - played) // STEPS_OF_A_STORY))
        sys.stderr.write(f"soak: {played} of {asked.steps} steps; next {stories} stories: SEED={number}\n")
        play(number, stories=BATCH if asked.seed is not None else stories)
        played += stories * STEPS_OF_A_STORY
        if asked.seed is not None:
            break
    sys.stderr.write(f"soak: {played} steps, nothing was found\n")
    return 0


def play(number: int, *, stories: int) -> None:
    """Play this many stories of a seed. Raises what the first one that fails raises, with its shortest form."""
    chosen = settings(
        max_examples=stories,
        stateful_step_count=STEPS_OF_A_STORY,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )

    class Seeded(AnyFleet):
        """The same stories in every run of this seed."""

    run_state_machine_as_test(seed(number)(Seeded), settings=chosen)


if __name__ == "__main__":
    sys.exit(main())
