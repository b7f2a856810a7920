"""What is concluded from effects: no change is asked for more because it saves GPUs as well."""

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import targets

from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.objective_effect import Merits, ObjectiveEffect, Question, concluded
from vllm_autotuner.change.verdict import Judgement

TARGETS = targets(ttft=2.0, tpot=0.05)
OBJECTIVES = (ChangeTarget.TTFT, ChangeTarget.TPOT, ChangeTarget.THROUGHPUT)
MERITS = st.builds(Merits, **{name: st.booleans() for name in ("safe", "as_good", "helped", "cured", "inside")})


def effect(objective: ChangeTarget) -> st.SearchStrategy[ObjectiveEffect]:
    level = st.sampled_from([0.01, 0.04, 0.06, 1.0, 3.0])
    return st.builds(
        ObjectiveEffect,
        objective=st.just(objective),
        candidate=level,
        reference=level,
        ratio=st.just(1.0),
        low=st.just(0.9),
        high=st.just(1.1),
        hurt=st.booleans(),
        merits=MERITS,
    )


@given(
    effects=st.tuples(*map(effect, OBJECTIVES)),
    target=st.sampled_from(OBJECTIVES[:2]),
    missed=st.frozensets(st.sampled_from(OBJECTIVES[:2])),
)
def test_what_is_kept_for_a_latency_is_kept_if_it_saves_gpus_as_well(
    effects: tuple[ObjectiveEffect, ...], target: ChangeTarget, missed: frozenset[ChangeTarget]
) -> None:
    def judged(aim: ChangeTarget) -> Judgement:
        question = Question(targets=TARGETS, target=aim, final=True, gpus=(1, 1), missed_before=missed)
        return concluded(effects, rejected=None, question=question)[0]

    if judged(target) is Judgement.KEEP:
        assert judged(ChangeTarget.GPUS) is Judgement.KEEP
