"""Writes `budgets.md` from the budgets themselves: `make docs`.

Apart from the product, because only this repository's documentation needs it. A test holds the page to the code.
Must not: name a limit that the code does not have.
"""

from pathlib import Path

from vllm_autotuner.budgets import BUDGETS

PAGE = Path(__file__).with_name("budgets.md")

HEAD = """# Budgets

Generated from `operator/vllm_autotuner/budgets.py` by `make docs`; do not edit. Anyone who may create a VLLMService,
label a pod or be scraped chooses data that the operator reads. Data of one service costs at most that service, a
bounded time and bounded memory. `vllm_autotuner_budget_exceeded_total{budget}` counts each time a limit bites.

| budget | limit | why | beyond it |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = (f"| `{each.name}` | {each.limit:,} {each.unit} | {each.reason} | {each.beyond} |" for each in BUDGETS)
    return HEAD + "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
