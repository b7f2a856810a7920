"""docs/constants.md is what the code has, each with a reason, and there are not more of them than there were."""

from docs import constants


def test_the_page_is_what_the_code_has() -> None:
    assert constants.PAGE.read_text(encoding="utf-8") == constants.page(), "run: make docs"


def test_each_has_a_reason() -> None:
    assert [one.where for one in constants.constants(constants.sources()) if not one.why] == []


def test_there_are_not_more_than_there_were() -> None:
    """The aim is fewer than 90. Take this number down with them, never up."""
    assert len(constants.constants(constants.sources())) <= 148


def test_a_number_counts_by_its_package_and_a_threshold_by_its_reason() -> None:
    text = '''"""A module."""
LEAST: Final = 0.1
"""Our choice."""
NAMES: Final = ("a", "b")
SAFE = Rule(limits=(Threshold(limit=3, unit="pods", reason="fewer are chance", source="measured"),))
'''
    found = constants.constants({"planning/one.py": text, "api/other.py": text})
    assert [(one.where, one.value, one.ours) for one in found] == [
        ("planning/one.LEAST", "0.1", True),
        ("planning/one, threshold 1", "3 pods", False),
    ]
