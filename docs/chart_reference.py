"""Writes `chart.md`, every value of the Helm chart, from `values.yaml` and its comments: `make docs`.

Must not: parse YAML by hand. Keys and defaults come from the parser, comments from the lines above a key.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from docs.table_cell import cell

PAGE = Path(__file__).with_name("chart.md")
VALUES = Path(__file__).resolve().parents[1] / "charts" / "vllm-autotuner" / "values.yaml"

HEAD = """# Helm chart

Generated from `charts/vllm-autotuner/values.yaml` by `make docs`; do not edit. A misspelt value is refused.

```
helm install vllm-autotuner charts/vllm-autotuner -n vllm-autotuner --create-namespace \\
  --set image.repository=REGISTRY/vllm-autotuner --set prometheus.url=http://prometheus:9090
```

| value | default | meaning |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    text = VALUES.read_text(encoding="utf-8")
    rows = _rows(yaml.compose(text), comments=_comments(text), path="")
    return HEAD + "".join(f"{row}\n" for row in rows)


def _rows(node: Any, *, comments: dict[int, str], path: str) -> Iterator[str]:
    for key, value in node.value:
        name, meaning = f"{path}{key.value}", comments.get(key.start_mark.line, "")
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            if meaning:
                yield f"| `{name}` | | {meaning} |"
            yield from _rows(value, comments=comments, path=f"{name}.")
        else:
            default = yaml.safe_load(yaml.serialize(value))
            yield f"| `{name}` | `{json.dumps(default)}` | {meaning} |"


def _comments(text: str) -> dict[int, str]:
    """The comment that stands right above a line, by the number of the line."""
    found: dict[int, str] = {}
    above: list[str] = []
    for number, line in enumerate(text.splitlines()):
        if line.strip().startswith("#"):
            above.append(line.strip().lstrip("# "))
        else:
            found[number] = cell(" ".join(above))
            above = []
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
