"""One service as HTML: what it says, and that no text of a tenant changes the page around it."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.overview.elements import NASTY, Elements, runs_and_loads_nothing
from tests.overview.objects import FULL, full, with_texts

from vllm_autotuner.api.service import parse_service
from vllm_autotuner.overview.fleet_table import fleet_table
from vllm_autotuner.overview.gpu_hours import RECORDED, Prices, savings_of
from vllm_autotuner.overview.history_rows import predicted_effects
from vllm_autotuner.overview.html_page import LONGEST, badge, document, safe
from vllm_autotuner.overview.service_row import row_of
from vllm_autotuner.overview.service_section import service_section

NOW = datetime(2026, 11, 20, 18, tzinfo=UTC)


def section(body: dict[str, Any]) -> str:
    service = parse_service(body)
    savings = savings_of(service, since=RECORDED, until=NOW, prices=Prices(flat=2.0))
    return service_section(service, savings=savings, now=NOW, identity="service")


def table(body: dict[str, Any]) -> str:
    return fleet_table([(row_of(body), None)], link=lambda row: "#s", caption="one")


def test_a_row_says_what_needs_a_person_before_what_the_engines_do() -> None:
    """Of a service whose spec is refused, no engine says anything: that is not the reason."""
    stalled = {"type": "Stalled", "status": "True", "reason": "InvalidSpec", "message": "invalid label value"}
    blind = {"class": "MetricsBlind", "message": "No vLLM engine reports fresh metrics."}
    body = full()
    body["status"] |= {"diagnosis": blind, "conditions": [stalled]}
    assert (row_of(body).conditions, row_of(body).message) == (("Stalled",), "invalid label value")
    paused = {**stalled, "type": "Paused", "message": "spec.paused is true"}
    body["status"]["conditions"] = [paused]
    assert (row_of(body).conditions, row_of(body).message) == (("Paused",), "No vLLM engine reports fresh metrics.")
    body["status"]["conditions"] = [{**stalled, "status": "False"}]
    assert row_of(body).message == "No vLLM engine reports fresh metrics."


def test_it_says_what_was_decided_and_why() -> None:
    text = Elements(section(full())).text
    for part in (
        *("prod/chat", "KVCacheSaturated", "The KV cache is full.", "confidence High", "KV usage", "99"),
        *("maxNumSeqs 64 -> 48", "48 sequences fit.", "KV pool", "Cooldown", "TTFT 2 s -> 400 ms"),
        *("2 of 2 ready, because the queue grew", "CircuitOpen True", "three rollbacks"),
        *("maxNumSeqs 32 -> 64", "Succeeded", "ConcurrencyCapped", "30 min 0 s"),
        "saved 7.5 GPU-hours (15.00)",  # 8 h with one GPU less, and half an hour of one more
        "3 -> 2 GPUs, 2 replicas (scaled by the operator)",
    ):
        assert part in text, part


def test_nothing_of_a_spec_that_may_be_secret_is_shown() -> None:
    for page in (section(full()), table(full())):
        assert "hidden" not in page
        assert "secret-image" not in page


def test_a_change_under_way_stands_instead_of_the_recommendation() -> None:
    change = {
        "id": "c2", "generation": 1, "knob": "maxNumSeqs", "fromValue": "64", "toValue": "48", "strategy": "Canary",
        "from": {"maxNumSeqs": 64}, "to": {"maxNumSeqs": 48}, "reason": "48 fit", "state": "Analyzing",
        "startedAt": "2026-11-20T17:00:00Z",
    }  # fmt: skip
    text = Elements(section(full(activeChange=change))).text
    assert "change under way" in text
    assert "Analyzing" in text
    assert "Cooldown" not in text


@pytest.mark.parametrize("nasty", NASTY)
def test_no_text_of_a_status_changes_the_page_around_it(nasty: str) -> None:
    """Whoever may write a VLLMService or its status is a stranger to who reads the page."""
    hostile = with_texts(lambda text: f"{text}{nasty}")
    # A class that is none has no colour: the badge of the plain one must lack it, too.
    plain = with_texts(lambda text: f"{text}x")
    for render in (section, table):
        page = document("t", [render(hostile)])
        assert Elements(page).shape == Elements(document("t", [render(plain)])).shape
        runs_and_loads_nothing(page)


def test_a_text_without_end_is_cut() -> None:
    huge = with_texts(lambda text: text + "<" * 100_000)
    assert len(section(huge)) < 100 * LONGEST
    assert len(table(huge)) < 20_000
    assert len(safe("&" * 10_000)) == LONGEST * len("&amp;") - len("&amp;") + 1


def test_objects_with_nothing_or_with_errors_are_shown() -> None:
    bare = {"metadata": FULL["metadata"], "spec": FULL["spec"]}
    assert "Not diagnosed yet." in section(bare)
    assert "GPUs" in section(bare)
    assert "not known" in section(bare)
    broken = {**full(), "spec": {"replicas": "many"}}
    assert "cannot be read" in section(broken)
    assert "cannot be read" in section({**bare, "status": {"gpuSteps": "x"}})


def test_only_a_known_class_has_a_colour() -> None:
    assert badge("Healthy") == '<span class="badge is-Healthy">Healthy</span>'
    assert badge('x" onclick="') == '<span class="badge">x&quot; onclick=&quot;</span>'


def test_what_the_model_moves_by_nothing_is_no_forecast() -> None:
    still = {"name": "TTFT", "unit": "s", "current": 18.9, "predicted": 18.9}
    moved = {"name": "TPOT", "unit": "s", "current": 0.02, "predicted": 0.03}
    assert predicted_effects([still]) == "the effect on TTFT is not modelled"
    assert predicted_effects([still, moved]) == "by the model TPOT 20 ms -> 30 ms; unchanged: TTFT 18.9 s"
    assert predicted_effects([moved]) == "by the model TPOT 20 ms -> 30 ms"
    assert predicted_effects([]) == ""
