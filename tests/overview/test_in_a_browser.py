"""The pages in a real browser: nothing is wider than a phone or a desk. Skipped where there is no Chromium."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from tests.overview.objects import full, with_texts
from tests.overview.test_service_section import section, table

from vllm_autotuner.overview.html_page import document

CHROMIUM: Final = shutil.which("chromium") or shutil.which("google-chrome")
MEASURED: Final = """<title>-</title><iframe src="page.html" width="{width}" height="800" frameborder="0"></iframe>
<script>
addEventListener("load", () => {{ document.title =
  "wide " + document.querySelector("iframe").contentDocument.documentElement.scrollWidth; }});
</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


def width_of(page: str, *, width: int, folder: Path) -> int:
    """How wide the browser lays out a page in a window of `width` pixels."""
    assert CHROMIUM is not None
    (folder / "page.html").write_text(page, encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(MEASURED.format(width=width), encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--allow-file-access-from-files", f"--user-data-dir={folder / 'user'}")
    found = subprocess.run(
        [CHROMIUM, *options, "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    measured = re.search(r"<title>wide (\d+)</title>", found.stdout)
    assert measured is not None, found.stdout[:500]
    return int(measured[1])


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("end", ["", " and more of it" * 40], ids=["usual texts", "long texts"])
def test_nothing_is_wider_than_the_window(tmp_path: Path, width: int, end: str) -> None:
    body = with_texts(lambda text: text + end) if end else full()
    page = document("t", [f"<main>{table(body)}{section(body)}</main>"])
    assert width_of(page, width=width, folder=tmp_path) <= width
