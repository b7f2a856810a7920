"""The documentation of the classes is generated; a rule that changes without it would make it lie."""

from docs.diagnosis_classes import PAGE, page
from vllm_autotuner.diagnosis.classes import DiagnosisClass


def test_the_page_is_what_the_rules_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_class_has_its_section() -> None:
    for named in DiagnosisClass:
        assert f". {named.value}\n" in page() or f"## {named.value}\n" in page()
