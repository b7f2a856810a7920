"""The cluster-wide limits: parsing, merging and applying; a misspelt limit allows no new change."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.api.spec import Mode
from vllm_autotuner.guardrails.mode_ceiling import NO_LIMITS, Limits, joined, limits_from, parse_limits

LADDER = [Mode.OFF, Mode.RECOMMEND, Mode.APPROVE, Mode.AUTOMATIC]
LIMITS = [
    limits_from(ceiling=ceiling, kill=kill, source=source)
    for ceiling, kill, source in product(LADDER, (False, True), ("flags", "ConfigMap"))
]


@pytest.mark.parametrize(
    ("data", "ceiling", "kill", "says"),
    [
        ({}, Mode.AUTOMATIC, False, ""),
        ({"modeCeiling": "Automatic", "killSwitch": "false"}, Mode.AUTOMATIC, False, ""),
        ({"modeCeiling": " Approve\n"}, Mode.APPROVE, False, "mode ceiling is Approve (ConfigMap a/b)"),
        ({"modeCeiling": "Off"}, Mode.OFF, False, "mode ceiling is Off"),
        ({"killSwitch": "True"}, Mode.RECOMMEND, True, "kill switch is on (ConfigMap a/b)"),
        ({"killSwitch": "true", "modeCeiling": "Off"}, Mode.OFF, True, "kill switch is on"),
        ({"modeCeiling": "automatic"}, Mode.RECOMMEND, False, "set modeCeiling to one of Off, Recommend"),
        ({"modeCeiling": ""}, Mode.RECOMMEND, False, "set modeCeiling to one of"),
        ({"killSwitch": "on"}, Mode.RECOMMEND, False, 'set killSwitch to "true" or "false"'),
        ({"killswitch": "true"}, Mode.RECOMMEND, False, "unknown key killswitch, use modeCeiling or killSwitch"),
    ],
)
def test_what_a_configmap_says(data: dict[str, str], ceiling: Mode, kill: bool, says: str) -> None:
    found = parse_limits(data, source="ConfigMap a/b")
    assert (found.ceiling, found.kill) == (ceiling, kill)
    assert says in found.why if says else found.why == ""


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), min_size=1))
def test_what_is_not_understood_allows_nothing_new(data: dict[str, str]) -> None:
    found = parse_limits({**data, "unknown": ""}, source="x")
    assert found.ceiling is Mode.RECOMMEND
    assert found.why


@pytest.mark.parametrize(("one", "other"), list(product(LIMITS, LIMITS)))
def test_of_two_the_stricter_counts_and_explains(one: Limits, other: Limits) -> None:
    both = joined(one, other)
    assert both.ceiling is LADDER[min(LADDER.index(one.ceiling), LADDER.index(other.ceiling))]
    assert both.kill == (one.kill or other.kill)
    assert (both.why == "") == (both == NO_LIMITS)
    assert ("kill switch" in both.why) == both.kill


@pytest.mark.parametrize(("ceiling", "mode"), list(product(LADDER, LADDER)))
def test_a_service_never_goes_beyond_the_ceiling_nor_its_own_mode(ceiling: Mode, mode: Mode) -> None:
    allowed = LADDER.index(Limits(ceiling=ceiling).of(mode))
    assert allowed == min(LADDER.index(ceiling), LADDER.index(mode))
