from itertools import pairwise

import pytest
from tests.diagnosis.recorded import SEATS, TRUTH, TWO_WINDOWS, moments_of, recording, timeline

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass

KNOWN_SEATS = [pytest.param(name, seats, id=f"{name} with max-num-seqs {seats}") for name, seats in SEATS.items()]
UNKNOWN_SEATS = [pytest.param(name, None, id=f"{name}, max-num-seqs not told") for name in SEATS]


@pytest.mark.parametrize(("name", "seats"), [*KNOWN_SEATS, *UNKNOWN_SEATS])
async def test_every_evaluation_says_what_really_held(name: str, seats: int | None) -> None:
    first = recording(name).first
    wrong = []
    for at, found in await timeline(recording(name), moments=moments_of(name), seats=seats):
        offset = at - first
        spans = [span for span in TRUTH[name] if span.start <= offset]
        allowed = set(spans[-1].holds)
        if len(spans) > 1 and offset - spans[-1].start < TWO_WINDOWS:
            # In transition: what held before, or that it is not clear, but no third thing.
            allowed |= {*spans[-2].holds, DiagnosisClass.UNCLEAR}
        if found.primary not in allowed:
            wrong.append(f"+{offset:.0f} s: {found.primary} instead of {sorted(allowed)} ({found.message})")
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "limit", "begins", "ends"),
    [
        pytest.param("kv-saturation", DiagnosisClass.PREEMPTION_THRASH, 76, 188, id="a full pool that evicts"),
        pytest.param("seats-saturation", DiagnosisClass.CONCURRENCY_CAPPED, 107, 168, id="taken seats"),
    ],
)
async def test_a_limit_is_named_and_dropped_within_two_windows(
    name: str, limit: DiagnosisClass, begins: float, ends: float
) -> None:
    first = recording(name).first
    evaluated = await timeline(recording(name), moments=moments_of(name), seats=SEATS[name])
    inside = [at - first for at, found in evaluated if found.primary is limit]
    assert begins < inside[0] <= begins + TWO_WINDOWS
    assert ends - TWO_WINDOWS < inside[-1] <= ends + TWO_WINDOWS
    # In one piece: a limit that flickers would start a change with every flicker.
    assert inside[-1] - inside[0] == pytest.approx(5.0 * (len(inside) - 1))


async def test_no_evaluation_flips_back_and_forth() -> None:
    for name, seats in SEATS.items():
        evaluated = await timeline(recording(name), moments=moments_of(name), seats=seats)
        classes = [found.primary for _, found in evaluated]
        turns = sum(before is not after for before, after in pairwise(classes))
        assert turns <= 4, f"{name}: {classes}"


async def test_a_known_max_num_seqs_makes_the_answer_surer() -> None:
    at = recording("seats-saturation").first + 155
    moments = [at - 10, at - 5, at]
    told = await timeline(recording("seats-saturation"), moments=moments, seats=4)
    untold = await timeline(recording("seats-saturation"), moments=moments, seats=None)
    assert told[-1][1].confidence is Confidence.HIGH
    assert untold[-1][1].confidence is Confidence.MEDIUM
    assert told[-1][1].primary is untold[-1][1].primary is DiagnosisClass.CONCURRENCY_CAPPED


async def test_a_wrong_max_num_seqs_is_contradicted_and_not_believed() -> None:
    """4 seats in truth, 64 told: the queue is there, the told seats are free and so is the pool."""
    at = recording("seats-saturation").first + 155
    evaluated = await timeline(recording("seats-saturation"), moments=[at - 10, at - 5, at], seats=64)
    assert evaluated[-1][1].primary is DiagnosisClass.OVERLOADED


async def test_the_evidence_carries_the_figures_of_the_recording() -> None:
    at = recording("kv-saturation").first + 140.6
    evaluated = await timeline(recording("kv-saturation"), moments=[at - 10, at - 5, at], seats=64)
    evidence = {one.name: one for one in evaluated[-1][1].evidence}
    assert evidence["KV usage, maximum"].value == 1.0
    assert evidence["KV usage, mean"].value == pytest.approx(0.91, abs=0.05)
    # 4.85 per second over a minute, says Prometheus: over the 28 s between the first and the last scrape that is 136.
    assert evidence["preemptions"].value == pytest.approx(136, rel=0.2)
    assert (evidence["running, maximum"].threshold, evidence["running, maximum"].unit) == (64, "sequences")
