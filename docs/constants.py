"""Writes `constants.md` from the code: `make docs`.

A constant is a number, a duration or a table of them that a package which decides assigns in a module, or a
`Threshold` of a diagnosis. Apart from the product, because only this repository's documentation needs it. A test holds
the page to the code, and the count to what it was.
Must not: leave one out because it is small, a unit or only guards arithmetic: then the count would be an opinion.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from docs.table_cell import cell

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT: Final = ROOT / "operator" / "vllm_autotuner"
PAGE: Final = Path(__file__).with_name("constants.md")
PACKAGES: Final = ("scaling", "planning", "performance", "diagnosis", "change", "guardrails")
NOISE: Final = "observation/noise.py"
"""What all of them take from the lowest layer."""
BEFORE: Final = "180 on 2026-11-22 (0125fa1), 172 before decision 16 (1b65a03)"
"""By `constants(sources(folder))` on checkouts of these commits."""
AIM: Final = 90
OURS: Final = "our choice"

HEAD = """# Constants that decide

Generated from the code by `make docs`; do not edit. Every number that a package which decides assigns, units and guards
of arithmetic included, and every threshold of a diagnosis, each with its source.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One of them."""

    package: str
    where: str
    """Module and name."""
    value: str
    why: str

    @property
    def ours(self) -> bool:
        """Whether the source is that somebody chose it."""
        return OURS in self.why.lower()


def constants(files: Mapping[str, str]) -> list[Constant]:
    """Those of source files, by path below the product."""
    deciding = (path for path in sorted(files) if path.split("/")[0] in PACKAGES or path == NOISE)
    return [one for path in deciding for one in _of(path, files[path])]


def sources(folder: Path = PRODUCT) -> dict[str, str]:
    """The files of the product, by path below it."""
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}


def page() -> str:
    """The whole page."""
    found = constants(sources())
    by_package = Counter(one.package for one in found)
    parts = ", ".join(f"{name} {by_package[name]}" for name in (*PACKAGES, "observation"))
    ours = sum(one.ours for one in found)
    counted = (
        f"**{len(found)}** today, of which {ours} are said to be our choice; {BEFORE}, counted alike. The aim is fewer "
        f"than {AIM}: {'reached' if len(found) < AIM else 'missed'}. By package: {parts}."
    )
    proven = (
        "Error rates of the constants of `change` are measured in [verdicts](verdicts.md), the diagnosis in "
        "[benchmarks](benchmarks.md); guardrails limit harm and are tested by faults. Design, Guardrails, Research, "
        "peers and field report are notes of before this repository, which it does not hold."
    )
    rows = (f"| `{one.where}` | `{cell(one.value)}` | {cell(one.why)} |" for one in found)
    return "\n".join(
        [HEAD, counted, "", proven, "", "| where | value | why, and its source |", "|---|---|---|", *rows, ""]
    )


def _of(path: str, text: str) -> Iterator[Constant]:
    tree = ast.parse(text)
    module = path.removesuffix(".py")
    for index, node in enumerate(tree.body):
        name = _target(node)
        value = getattr(node, "value", None)
        if name is None or value is None or any(map(_is_threshold, ast.walk(value))) or not _has_number(value):
            continue
        after = tree.body[index + 1] if index + 1 < len(tree.body) else None
        yield Constant(
            package=path.split("/")[0], where=f"{module}.{name}", value=ast.unparse(value), why=_docstring(after)
        )
    thresholds = [each for each in ast.walk(tree) if _is_threshold(each)]
    for number, found in enumerate(thresholds, start=1):
        told = {each.arg: each.value for each in getattr(found, "keywords", ())}
        yield Constant(
            package=path.split("/")[0],
            where=f"{module}, threshold {number}",
            value=f"{ast.unparse(told['limit'])} {ast.literal_eval(told['unit'])}",
            why="; ".join(ast.literal_eval(told[part]) for part in ("reason", "source")),
        )


def _target(node: ast.stmt) -> str | None:
    """The name in capitals that a statement assigns."""
    match node:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name if name.lstrip("_").isupper() else None
        case _:
            return None


def _is_threshold(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Threshold"


def _has_number(value: ast.AST) -> bool:
    return any(isinstance(each, ast.Constant) and type(each.value) in (int, float) for each in ast.walk(value))


def _docstring(node: ast.stmt | None) -> str:
    text = getattr(getattr(node, "value", None), "value", "") if isinstance(node, ast.Expr) else ""
    return " ".join(text.split()) if isinstance(text, str) else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
