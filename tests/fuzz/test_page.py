"""The page of the fuzzing shows the run that is saved."""

from docs import fuzzing


def test_the_page_shows_the_saved_run() -> None:
    assert fuzzing.PAGE.read_text(encoding="utf-8") == fuzzing.page(), "run `make docs`"
