"""Pages in headless Chromium: how large they are, what they look like, and what axe-core finds about accessibility.

Apart from the tests, because `make screenshots` looks at pages of a running operator with it. Chromium is the
machine's; axe-core comes from npm, once, into the user's cache: neither is part of the repository.
Must not: change what a page shows. A copy of it gets the scripts that measure, so its own policy is taken off there.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_CHROMIUM: Final = "no Chromium in the PATH: apt-get install chromium"
WIDTHS: Final = (1280, 390)
"""Pixels: a desk and a phone."""
AXE_VERSION: Final = "4.14.1"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-autotuner" / "npm"
AXE: Final = CACHE / f"axe-core-{AXE_VERSION}" / "axe.min.js"
"""Where it is once it was fetched."""
GRAVE: Final = frozenset({"serious", "critical"})
SECONDS: Final = 120.0
_POLICY: Final = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_TOLD: Final = re.compile(r'<pre id="told">(.+?)</pre>', re.DOTALL)
_MEASURE: Final = """
addEventListener("load", async () => {
  const root = document.documentElement, told = {width: root.scrollWidth, height: root.scrollHeight, findings: null};
  if (window.axe) told.findings = (await axe.run()).violations.map(found => [found.impact, found.id, found.help,
    found.nodes.map(node => node.target.join(" "))]);
  parent.postMessage(JSON.stringify(told), "*");
});
"""
_FRAME: Final = """<pre id="told"></pre><script>
addEventListener("message", event => {{ document.querySelector("#told").textContent = event.data; }});
</script><iframe src="page.html" width="{width}" height="900" frameborder="0"></iframe>"""
"""Chromium has no window as narrow as a phone."""


class BrowserError(Exception):
    """Chromium, npm or a page did not do what is needed; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the browser says of a page."""

    width: int
    """Pixels that it takes; more than the window's is a page that must be moved sideways."""
    height: int
    grave: tuple[str, ...]
    """What axe-core calls serious or critical; empty without axe-core, too."""


def axe_core() -> Path:
    """The script of axe-core, from the cache or else from npm. Raises BrowserError where there is neither."""
    if AXE.is_file():
        return AXE
    npm = shutil.which("npm")
    if npm is None:
        raise BrowserError("no npm in the PATH: accessibility is not checked")
    CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=CACHE) as folder:
        # npm compares what it gets with the registry's checksum of this version.
        command = [npm, "install", "--prefix", folder, "--no-save", "--ignore-scripts", f"axe-core@{AXE_VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        if done.returncode != 0:
            raise BrowserError(f"npm cannot install axe-core {AXE_VERSION}: {done.stderr.strip()[-300:]}")
        AXE.parent.mkdir(exist_ok=True)
        (Path(folder) / "node_modules" / "axe-core" / "axe.min.js").replace(AXE)
    return AXE


def look_at(page: str, *, width: int, axe: Path | None = None) -> Looked:
    """Lay out a page in a window of `width` pixels, and check it where axe-core is given. Raises BrowserError."""
    scripts = ["" if axe is None else axe.read_text(encoding="utf-8"), _MEASURE]
    copy = _POLICY.sub("", page) + "".join(f"<script>{script}</script>" for script in scripts)
    with TemporaryDirectory() as folder:
        (Path(folder) / "page.html").write_text(copy, encoding="utf-8")
        file = Path(folder) / "frame.html"
        file.write_text(_FRAME.format(width=width), encoding="utf-8")
        shown = _chromium(folder, "--dump-dom", "--hide-scrollbars", "--virtual-time-budget=20000", file.as_uri())
    told = _TOLD.search(shown)
    if told is None:
        raise BrowserError(f"the page did not load: {shown[:300]}")
    found: dict[str, Any] = json.loads(unescape(told[1]))
    grave = (
        f"{impact}: {rule}: {help_} ({'; '.join(nodes[:3])})"
        for impact, rule, help_, nodes in found["findings"] or ()
        if impact in GRAVE
    )
    return Looked(width=found["width"], height=found["height"], grave=tuple(grave))


def picture(url: str, *, width: int, height: int, file: Path) -> None:
    """Write a PNG of a page, all of it. Raises BrowserError."""
    with TemporaryDirectory() as folder:
        _chromium(folder, "--hide-scrollbars", f"--window-size={width},{height}", f"--screenshot={file}", url)
    if not file.is_file():
        raise BrowserError(f"Chromium wrote no picture of {url}")


def _chromium(folder: str, *arguments: str) -> str:
    if CHROMIUM is None:
        raise BrowserError(NO_CHROMIUM)
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user")
    done = subprocess.run(
        [CHROMIUM, *options, *arguments], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if done.returncode != 0:
        raise BrowserError(f"Chromium ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout
