"""The documentation site: references say what the code says, every link leads somewhere, every page is in the menu."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from docs import api_reference, chart_reference, cli_reference
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


def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "quickstart" / "index.html").is_file()
