"""docs/verdicts.md says what the code does: every value of its table is that of the constant."""

import re
from pathlib import Path

from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.before_after import FEWEST_BEFORE, SAME_LOAD
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
from vllm_autotuner.change.failing import FEWEST, MOST_FAILED, MOST_FAILED_ALONE, TIMES
from vllm_autotuner.change.objective_effect import INSIDE, MARGINS
from vllm_autotuner.change.rejections import GROSS_REJECTED, MORE_REJECTED

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"


def test_the_table_is_what_the_code_does() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("| | value |") :]
    found = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", table, flags=re.MULTILINE))
    assert MARGINS[ChangeTarget.TPOT] == MARGINS[ChangeTarget.THROUGHPUT]
    assert found == {
        "looks, windows with data": ", ".join(map(str, LOOKS)),
        "Keep from (earlier only when time is up)": str(KEEP_FROM),
        "finished requests on each side, and after a change in place, at least": f"{FEWEST_REQUESTS:.0f}",
        "margin of TTFT": f"{100 * MARGINS[ChangeTarget.TTFT]:g} %",
        "margin of TPOT and of tokens per second": f"{100 * MARGINS[ChangeTarget.TPOT]:g} %",
        "reserve inside a target": f"{100 * INSIDE:g} %",
        "probability of missing a bound, first look": f"{100 * FIRST_LEVEL:.1f} %",
        "probability of missing a bound, later looks": f"{100 * LEVEL:.1f} %",
        "the same for the quantile of a latency that must be safe, if its mean is safe": f"{100 * LIKELY:g} %",
        "gross violation: multiple of the baseline, TTFT": f"{GROSS[ChangeTarget.TTFT]:g}",
        "gross violation: multiple of the baseline, TPOT": f"{GROSS[ChangeTarget.TPOT]:g}",
        "gross violation: newest windows, all of them": str(GROSS_WINDOWS),
        "in place: loads that differ by less are equal": f"{100 * SAME_LOAD:g} %",
    }


def test_the_prose_is_what_the_code_does() -> None:
    prose = " ".join(PAGE.read_text(encoding="utf-8").split())
    for sentence in (
        f"failed {FEWEST} or more requests, over {100 * MOST_FAILED:g} % of its requests and over {TIMES:g} times",
        f"the threshold is {100 * MOST_FAILED_ALONE:g} %",
        f"rejects {100 * MORE_REJECTED:g} % more is not kept",
        f"rejects {100 * GROSS_REJECTED:g} % more in the newest windows",
        f"With fewer than {FEWEST_BEFORE} windows before, only the last look counts",
        f"With fewer than {FEWEST_REQUESTS:g} requests on one side there is no verdict",
        f"at most as many (within {100 * SAME_LOAD:g} %",
    ):
        assert sentence in prose
