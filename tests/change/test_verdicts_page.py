"""docs/verdicts.md says what the code does: every value of its table is that of the constant."""

import re
from pathlib import Path

from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.before_after import SAME_LOAD
from vllm_autotuner.change.comparison import (
    FEWEST_REQUESTS,
    FIRST_LEVEL,
    GROSS,
    GROSS_WINDOWS,
    KEEP_FROM,
    LEVEL,
    LIKELY,
    LOOKS,
)
from vllm_autotuner.change.objective_effect import INSIDE, MARGINS

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"


def test_the_table_is_what_the_code_does() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("| | value |") :]
    found = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", table, flags=re.MULTILINE))
    assert MARGINS[ChangeTarget.TPOT] == MARGINS[ChangeTarget.THROUGHPUT]
    assert found == {
        "looks, windows with data": ", ".join(map(str, LOOKS)),
        "Keep from (earlier only when time is up)": str(KEEP_FROM),
        "finished requests in each arm, and after a change in place, at least": f"{FEWEST_REQUESTS:.0f}",
        "margin of TTFT": f"{100 * MARGINS[ChangeTarget.TTFT]:g} %",
        "margin of TPOT and of tokens per second": f"{100 * MARGINS[ChangeTarget.TPOT]:g} %",
        "room inside a target": f"{100 * INSIDE:g} %",
        "chance to miss a bound, first look": f"{100 * FIRST_LEVEL:.1f} %",
        "chance to miss a bound, later looks": f"{100 * LEVEL:.1f} %",
        "the same for the quantile of a latency that is to be safe, where the mean is": f"{100 * LIKELY:g} %",
        "gross: times the reference, TTFT": f"{GROSS[ChangeTarget.TTFT]:g}",
        "gross: times the reference, TPOT": f"{GROSS[ChangeTarget.TPOT]:g}",
        "gross: newest windows, all of them": str(GROSS_WINDOWS),
        "in place: loads that differ by less are the same": f"{100 * SAME_LOAD:g} %",
    }
