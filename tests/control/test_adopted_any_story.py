"""Adoption under crashes and under an owner who does what he likes: what he wrote stays his, to the letter."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.control.adopting_bed import ARGS, AdoptingBed, adopting, args_of, managed, theirs
from tests.control.cluster_model import Killed, Load
from tests.control.loop_bed import queueing, slow_beyond_64
from tests.examples import examples

from vllm_autotuner.api.status import Outcome
from vllm_autotuner.engine.flags import tuned_knob

ENOUGH = 40
"""Ticks after which these changes are over, also when a restart cost a window."""
TUNED = tuple("128" if word == "64" else word for word in ARGS)


async def played(load: Callable[[int], Load], *, kill: tuple[int, str] | None = None) -> AdoptingBed:
    found = adopting(load=load)
    found.api.kill = kill
    for _ in range(ENOUGH):
        try:
            await found.tick()
        except Killed:
            found.api.kill = None
            found.restart()
    return found


def end(found: AdoptingBed) -> dict[str, Any]:
    status = found.status()
    assert status.effective is not None
    return {
        "args": found.args,
        "writes": len(found.api.written),
        "outcomes": [entry.outcome for entry in status.history],
        "source": status.effective.source,
        "seats": status.effective.max_num_seqs,
        "change": found.change(),
        "pods": len(found.api.pods),
    }


@pytest.mark.fault("T01", "T02")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("load", "outcome", "args", "writes"),
    [
        pytest.param(queueing, Outcome.SUCCEEDED, TUNED, 1, id="a change that helps"),
        pytest.param(slow_beyond_64, Outcome.ROLLED_BACK, ARGS, 2, id="a change that harms"),
    ],
)
async def test_killed_at_every_request(
    load: Callable[[int], Load], outcome: Outcome, args: tuple[str, ...], writes: int, when: str
) -> None:
    undisturbed = await played(load)
    wanted = end(undisturbed)
    assert (wanted["outcomes"], wanted["args"], wanted["writes"]) == ([outcome], args, writes)
    for point in range(undisturbed.api.point):
        found = await played(load, kill=(point, when))
        assert found.api.kill is None, f"request {point} never came"
        assert end(found) == wanted, f"killed {when} request {point}"


def _append(found: AdoptingBed) -> None:
    found.api.edit_deployment(lambda body: args_of(body).append("--seed=2"), manager="kubectl-edit")


def _own_seats(found: AdoptingBed) -> None:
    found.api.edit_deployment(
        lambda body: args_of(body).__setitem__(slice(None), [*ARGS, "--max-num-seqs=32"]), manager="kubectl-edit"
    )


def _put_back(found: AdoptingBed) -> None:
    found.api.edit_deployment(lambda body: args_of(body).__setitem__(slice(None), ARGS), manager="kubectl-edit")


def _declare(found: AdoptingBed) -> None:
    found.api.edit_deployment(
        lambda body: body["metadata"].update(managedFields=[managed("argocd-controller", operation="Apply")])
    )


def _other_pods(found: AdoptingBed) -> None:
    found.api.edit_deployment(
        lambda body: body["spec"]["template"]["spec"].update(nodeSelector={"pool": str(found.api.version)})
    )


def _narrow(found: AdoptingBed) -> None:
    found.api.edit("chat", lambda body: body["spec"]["tuning"].update(maxNumSeqs={"min": 16, "max": 96}))


def _switch_off(found: AdoptingBed) -> None:
    found.api.edit("chat", lambda body: body["spec"]["tuning"].update(mode="Off"))


OWNERS: tuple[Callable[[AdoptingBed], None], ...] = (_append, _own_seats, _put_back, _declare, _other_pods)
OTHERS: tuple[Callable[[AdoptingBed], None], ...] = (AdoptingBed.restart, _narrow, _switch_off)


def others(args: tuple[str, ...]) -> list[str]:
    """The arguments without what may be tuned."""
    words, kept = list(args), []
    while words:
        word = words.pop(0)
        if tuned_knob(word) is None:
            kept.append(word)
        elif "=" not in word:
            words.pop(0)
    return kept


@settings(max_examples=examples(8, in_soak=15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    script=st.lists(st.tuples(st.integers(1, 7), st.sampled_from(OWNERS + OTHERS)), min_size=1, max_size=4),
    load=st.sampled_from([queueing, slow_beyond_64]),
)
async def test_whatever_happens_the_owners_words_are_his(
    script: list[tuple[int, Callable[[AdoptingBed], None]]], load: Callable[[int], Load]
) -> None:
    found = adopting(theirs(), load=load)
    for ticks, act in [*script, (8, AdoptingBed.restart)]:
        for _ in range(ticks):
            declared = found.live["metadata"]["managedFields"][0]["manager"] == "argocd-controller"
            kept, writes, changing = others(found.args), len(found.api.written), found.change() is not None
            await found.tick()
            assert others(found.args) == kept, "an argument that is not tuned has changed"
            if declared and not changing:
                assert len(found.api.written) == writes, "flags that somebody declares were written"
        act(found)
    assert len(found.api.written) <= 4
