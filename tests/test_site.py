"""The documentation site: references say what the code says, every link leads somewhere, every page is in the menu."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from docs import api_reference, chart_reference, cli_reference, pictures
from vllm_autotuner.api.crd import crd
from vllm_autotuner.cli.command_tree import COMMANDS
from vllm_autotuner.cli.lazy_commands import loaded

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"


@pytest.mark.parametrize("reference", [api_reference, chart_reference, cli_reference], ids=lambda each: each.PAGE.name)
def test_references_are_generated(reference: Any) -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run: make docs"


def test_every_option_of_every_command_is_in_its_reference() -> None:
    text = cli_reference.page()
    for name in COMMANDS:
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        options = {each for parameter in loaded(COMMANDS, name).params for each in parameter.opts if each[0] == "-"}
        assert [each for each in options if each not in section] == [], name


def test_every_field_of_the_spec_is_in_its_reference_with_its_meaning() -> None:
    rows = {line.split("`")[1]: line for line in api_reference.page().splitlines() if line.startswith("| `spec.")}
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert {f"spec.{name}" for name in schema} <= rows.keys()
    assert [name for name, line in rows.items() if line.rstrip(" |").endswith("|")] == []


def test_every_value_of_the_chart_is_in_its_reference() -> None:
    values = yaml.safe_load(chart_reference.VALUES.read_text(encoding="utf-8"))
    named = {line.split("`")[1].partition(".")[0] for line in chart_reference.page().splitlines() if line[:3] == "| `"}
    assert named == values.keys()


def pages(entries: Any) -> set[str]:
    if isinstance(entries, str):
        return {entries}
    inner = entries.values() if isinstance(entries, dict) else entries
    return {page for each in inner for page in pages(each)}


def test_every_page_is_in_the_menu() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("!!python/name:", "")
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert pages(yaml.safe_load(text)["nav"]) == there


def built(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=source,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("taken", [False, True], ids=["without pictures", "with pictures"])
def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path, taken: bool) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(DOCS, source / "docs", ignore=shutil.ignore_patterns(pictures.FOLDER.name))
    shutil.copy(ROOT / "mkdocs.yml", source)
    if taken:
        (source / "docs" / pictures.FOLDER.name).mkdir()
        (source / "docs" / pictures.FOLDER.name / "report-390.png").write_bytes(b"a picture")
    done = built(source, site)
    assert done.returncode == 0, done.stderr
    assert (site / "quickstart" / "index.html").is_file()
    assert ("The report of a fleet" in (site / "savings" / "index.html").read_text(encoding="utf-8")) == taken


def test_every_picture_of_a_page_is_taken_and_every_one_that_is_taken_is_on_a_page() -> None:
    named = [name for page in DOCS.glob("*.md") for name, _ in pictures.MARK.findall(page.read_text(encoding="utf-8"))]
    assert sorted(named) == sorted(pictures.NAMES)
