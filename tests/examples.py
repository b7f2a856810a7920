"""How many examples a costly property draws: few in every run, all of them in `make soak`.

Apart from `conftest.py`, which registers the profiles: test modules cannot import it.
Must not: give a property fewer examples in `make soak` than it is meant to have.
"""

from typing import Final

from hypothesis import settings

__all__ = ["SEARCH", "examples"]

SEARCH: Final = "search"
"""The profile of `make soak`."""


def examples(in_every_run: int, *, in_soak: int) -> int:
    """Return the number of examples for the profile of this run."""
    return in_soak if settings.get_current_profile_name() == SEARCH else in_every_run
