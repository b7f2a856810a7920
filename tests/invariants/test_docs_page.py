"""The page of invariants is generated: it must change together with the checks."""

from tests.invariants.catalogue import INVARIANTS

from docs.invariants import PAGE, page


def test_the_page_is_what_the_checks_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_invariant_says_why_and_how() -> None:
    for each in INVARIANTS:
        assert each.check, each.id
        assert f"## {each.id}. " in page()
