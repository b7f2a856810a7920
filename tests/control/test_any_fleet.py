"""A fixed selection of random stories: the same on every machine and in every run. `make soak` plays others."""

from hypothesis import settings
from tests.control.any_fleet import AnyFleet

TestAnyFleet = AnyFleet.TestCase
TestAnyFleet.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, derandomize=True, database=None, print_blob=False
)
