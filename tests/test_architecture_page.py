"""docs/architecture.md names only files and folders that exist."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "operator" / "vllm_autotuner"
PAGE: Final = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DRAWING: Final = PAGE.partition("```mermaid")[2].partition("```")[0]
DRAWN: Final = re.findall(r"[\" ]((?:\w+/)+)[\":]", DRAWING)
WHERE_TO_GO: Final = PAGE.partition("## I want to change")[2]
ROWS: Final = [line for line in WHERE_TO_GO.splitlines() if line.startswith("| ") and "`" in line]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+(?:/|\.py))`", PAGE)) - {"operator/vllm_autotuner/"}))
def test_a_named_path_exists(name: str) -> None:
    path = PACKAGE / name
    assert path.is_dir() if name.endswith("/") else path.is_file()


@pytest.mark.parametrize("name", sorted(set(DRAWN)))
def test_a_drawn_folder_exists(name: str) -> None:
    assert (PACKAGE / name).is_dir()


def test_every_folder_of_the_package_is_drawn_and_described() -> None:
    folders = {each.parent.name for each in PACKAGE.glob("*/__init__.py")}
    drawn = {name.split("/")[0] for name in DRAWN}
    described = {name.split("/")[0] for name in re.findall(r"^\| `((?:\w+/)+)` \|", PAGE, flags=re.MULTILINE)}
    assert drawn == folders
    assert described == folders


@pytest.mark.parametrize("row", ROWS)
def test_a_row_sends_the_reader_to_one_file(row: str) -> None:
    answer = row.rsplit(" | ", 1)[1]
    assert len(re.findall(r"`[\w/]+\.py`", answer)) == 1


def test_the_import_order_is_that_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each.get("containers") == ["vllm_autotuner"])
    rule = PAGE.partition("folders to its right:")[2].partition(".\n")[0]
    told = [re.findall(r"`(\w+)`", part) for part in rule.split(">")]
    assert told == [layer.split(" | ") for layer in layers]
