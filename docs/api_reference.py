"""Writes `api.md`, every field of a VLLMService, from the generated CRD: `make docs`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.table_cell import cell
from vllm_autotuner.api.crd import crd

PAGE = Path(__file__).with_name("api.md")

HEAD = """# VLLMService

Generated from the CRD by `make docs`; do not edit. `kubectl explain vllmservice.spec --recursive` prints the same.
`status` is written by the operator only.
"""


def page() -> str:
    """The whole page."""
    [version] = crd()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    parts = [HEAD]
    for name in ("spec", "status"):
        parts.append(f"## {name}\n\n| field | type | meaning |\n|---|---|---|")
        required = frozenset(schema[name].get("required", ()))
        parts.append("\n".join(_rows(schema[name], path=name, required=required)) + "\n")
    return "\n".join(parts)


def _rows(schema: Mapping[str, Any], *, path: str, required: frozenset[str]) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        place = f"{path}.{name}"
        inner = field.get("items", field)
        more = " Required." if name in required else ""
        yield f"| `{place}` | {_kind(field)} | {cell(field.get('description', ''))}{more} |"
        yield from _rows(
            inner, path=f"{place}[]" if "items" in field else place, required=frozenset(inner.get("required", ()))
        )


def _kind(field: Mapping[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}"
    return str(field.get("type", "any"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
