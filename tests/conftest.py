"""What holds for every test: no verdict depends on how busy the machine is, or on luck.

Luck has a run of its own: `make soak` draws other examples each time, and more of them (profile `search`).
"""

import os
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from tests.examples import SEARCH
from tests.patience import patient_connections as patient_connections

EVERY_RUN: Final = "shared machine"
MANY: Final = 500
"""Examples of a property that does not say how many itself; five times the usual. Our choice: an hour on two cores."""

settings.register_profile(EVERY_RUN, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    SEARCH, deadline=None, max_examples=MANY, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples in every run, unless a profile is named on the command line."""
    # pytest-xdist tells its workers a width, which would be taken for the user's.
    os.environ.pop("COLUMNS", None)
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile(EVERY_RUN)
