"""The pages in a real browser: nothing is wider than a phone or a desk, and nothing shuts anybody out.

Skipped where there is no Chromium; the check of accessibility also where npm cannot get axe-core.
"""

from pathlib import Path
from typing import Final

import pytest
from tests.browser import CHROMIUM, NO_CHROMIUM, WIDTHS, BrowserError, axe_core, look_at
from tests.overview.objects import full, with_texts
from tests.overview.test_change_timeline import ACTIVE
from tests.overview.test_service_section import section, table
from typer.testing import CliRunner

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.overview.html_page import document

RECORDING: Final = Path(__file__).parents[1] / "data" / "vllm-0.32" / "recordings" / "kv-saturation.om.gz"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@pytest.fixture(scope="module")
def axe() -> Path:
    try:
        return axe_core()
    except BrowserError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("end", ["", " and more of it" * 40], ids=["usual texts", "long texts"])
def test_nothing_is_wider_than_the_window(width: int, end: str) -> None:
    body = with_texts(lambda text: text + end) if end else full()
    page = document("t", [f"<main>{table(body)}{section(body)}</main>"])
    assert look_at(page, width=width).width <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_accessibility_has_no_serious_finding(axe: Path, width: int) -> None:
    body = full(activeChange=ACTIVE)
    page = document("t", [f"<header><h1>vLLM services</h1></header><main>{table(body)}{section(body)}</main>"])
    assert look_at(page, width=width, axe=axe).grave == ()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_of_a_diagnosis_fits_and_has_no_serious_finding(axe: Path, width: int, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["diagnose", "--recording", str(RECORDING), "--html", str(file)]).exit_code == 0
    looked = look_at(file.read_text(encoding="utf-8"), width=width, axe=axe)
    assert (looked.width, looked.grave) == (width, ())


def test_the_check_finds_what_it_looks_for(axe: Path) -> None:
    page = document("t", ["<main><h1>t</h1><a href='#t'></a><p>text</p></main>"])
    assert any("link-name" in each for each in look_at(page, width=1280, axe=axe).grave)
