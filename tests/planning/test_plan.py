"""Which class asks for what, and which never asks."""

from dataclasses import replace

import pytest
from tests.builders import engine, latency, nobody, observation
from tests.planning.situations import CAPPED, LOWERABLE, QWEN_32B, SLOW, line, scaling, situation, steady, with_steps

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import AllowedInts, IntBounds, Tuning
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.advice import ADVICE
from vllm_autotuner.planning.max_num_seqs import PRESENT_UNKNOWN
from vllm_autotuner.planning.more_replicas import FREE_GPUS
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.plan import LADDER, plan
from vllm_autotuner.planning.platform import Platform
from vllm_autotuner.planning.worth import MET

SILENT = {
    DiagnosisClass.METRICS_BLIND,
    DiagnosisClass.COLD_START,
    DiagnosisClass.WEDGED,
    DiagnosisClass.IDLE,
    DiagnosisClass.DEFERRED_QUEUE,
    # What helps these is nobody's but the user's.
    DiagnosisClass.RUNAWAY_OUTPUTS,
    DiagnosisClass.CONTEXT_OVERSIZED,
    DiagnosisClass.UNCLEAR,
}
FULL = observation(engine(running=40.0, waiting=30.0, kv=0.97))


@pytest.mark.parametrize("silent", sorted(SILENT))
@pytest.mark.parametrize("seen", [CAPPED, SLOW, FULL], ids=["capped", "slow", "full"])
def test_classes_that_propose_nothing(silent: DiagnosisClass, seen: Observation) -> None:
    """Whatever the figures say: waiting, restarting or looking elsewhere is what helps these."""
    assert plan(situation(seen, primary=silent, scale=scaling())).proposal is None


@pytest.mark.parametrize("met", sorted(MET))
@pytest.mark.parametrize("seen", [CAPPED, SLOW, FULL], ids=["capped", "slow", "full"])
def test_where_objectives_are_met_nothing_is_proposed_whose_saving_is_not_known(
    met: DiagnosisClass, seen: Observation
) -> None:
    assert plan(situation(seen, primary=met, scale=scaling(), replicas=2)).proposal is None


def test_a_full_cache_gets_no_shorter_limit_as_it_frees_nothing() -> None:
    long = (DiagnosisClass.CONTEXT_OVERSIZED,)
    engines = tuple(replace(each, pool=KVPool(tokens=40_000)) for each in FULL.engines)
    full = replace(FULL, engines=engines, prompt_length=latency(500.0), output_length=latency(100.0))
    for primary in (DiagnosisClass.KV_CACHE_SATURATED, DiagnosisClass.PREEMPTION_THRASH):
        found = plan(
            situation(
                full,
                primary=primary,
                contributing=long,
                knobs=EngineKnobs(max_model_len=40_960),
                tuning=Tuning(max_model_len=IntBounds(min=1024, max=40_960)),
            )
        )
        assert Knob.MAX_MODEL_LEN not in {each.proposal.knob for each in (*found.considered, *found.not_worth)}
        assert found.proposal is None or found.proposal.knob is not Knob.MAX_MODEL_LEN


def test_every_other_class_has_a_ladder() -> None:
    assert set(LADDER) == set(DiagnosisClass) - SILENT


def test_every_class_has_advice() -> None:
    assert set(ADVICE) == set(DiagnosisClass)


def test_max_num_seqs_comes_before_replicas() -> None:
    found = plan(situation(CAPPED, scale=scaling()))
    assert found.proposal is not None
    assert found.proposal.knob is Knob.MAX_NUM_SEQS
    assert [each.proposal.knob for each in found.considered] == [Knob.MAX_NUM_SEQS, Knob.REPLICAS]


def test_where_max_num_seqs_is_not_known_another_knob_is_tried() -> None:
    """The engine's default may be higher than what ran: a raise is only recommended, and hides no other knob."""
    found = plan(situation(CAPPED, primary=DiagnosisClass.CONCURRENCY_CAPPED, seats=None, scale=scaling()))
    assert found.proposal is not None
    assert (found.proposal.knob, found.proposal.recommend_only) == (Knob.REPLICAS, "")
    raised = found.considered[1]
    assert (raised.proposal.knob, raised.lost) == (Knob.MAX_NUM_SEQS, f"recommended only: {PRESENT_UNKNOWN}")


def test_what_lost_is_explained() -> None:
    found = plan(situation(CAPPED, scale=scaling(), failed=[65]))
    assert found.proposal is not None
    assert found.proposal.knob is Knob.REPLICAS
    assert [why for why in found.passed_over if "rolled back or declined at 65" in why]


def test_a_full_pool_never_gets_a_higher_max_num_seqs() -> None:
    found = plan(situation(FULL, scale=scaling()))
    assert found.proposal is not None
    assert (found.proposal.knob, found.proposal.target) == (Knob.REPLICAS, ChangeTarget.TTFT)


def test_past_the_knee_only_fewer_slots_are_asked_for() -> None:
    found = plan(situation(LOWERABLE, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scaling(high=1)))
    assert found.proposal is not None
    assert (found.proposal.knob, found.proposal.count < 64) == (Knob.MAX_NUM_SEQS, True)
    stuck = with_steps(SLOW, line(16, 32, 64, base=0.06, per_sequence=0.0003))
    assert plan(situation(stuck, primary=DiagnosisClass.PAST_TPOT_KNEE, scale=scaling())).proposal is None


DEGREES = Tuning(tensor_parallel_size=AllowedInts(allowed=(1, 2, 4)))
POOL_FULL = steady(8, 16, 32, 60, base=0.014, per_sequence=0.0003, pods=1, kv_each=0.016, waiting=40.0, ttft=8.0)


@pytest.mark.parametrize("seen", [CAPPED, FULL, LOWERABLE, POOL_FULL], ids=["capped", "full", "slow", "pool"])
@pytest.mark.parametrize("primary", sorted(LADDER))
def test_outputs_that_run_to_their_limit_never_get_gpus(seen: Observation, primary: DiagnosisClass) -> None:
    """A user has to fix that; GPUs would only hide it."""
    knobs = EngineKnobs(max_num_seqs=64, max_model_len=16_384, tensor_parallel_size=2)
    found = plan(
        situation(
            seen, primary=primary, scale=scaling(), contributing=[DiagnosisClass.RUNAWAY_OUTPUTS], knobs=knobs,
            tuning=DEGREES, platform=replace(QWEN_32B, devices_ours=True),
        )
    )  # fmt: skip
    assert all(each.proposal.knob is not Knob.REPLICAS for each in found.considered)
    assert all(each.proposal.extra_gpus <= 0 for each in found.considered)


def test_one_replica_more_up_to_the_maximum() -> None:
    more = plan(situation(FULL, scale=scaling(high=3), replicas=2))
    assert more.proposal is not None
    assert (more.proposal.current, more.proposal.value, more.proposal.recommend_only) == (2, 3, "")
    full = plan(situation(FULL, scale=scaling(high=3), replicas=3))
    assert full.proposal is None
    assert "already at scaling.maxReplicas (3)" in full.passed_over


def test_replicas_that_are_not_ours_are_recommended_only() -> None:
    found = plan(situation(FULL, replicas=2))
    assert found.proposal is not None
    assert "spec.scaling is not set" in found.proposal.recommend_only


def test_a_person_is_told_that_no_gpu_is_free_and_a_pod_that_is_ours_to_add_waits_for_one() -> None:
    full = Platform(free_gpus=FreeGpus(free=(), largest_node=8))
    told = plan(situation(FULL, replicas=2, platform=full)).proposal
    assert told is not None
    assert (told.value, told.limited_by) == (3, FREE_GPUS)
    ours = plan(situation(FULL, scale=scaling(high=4), replicas=2, platform=full)).proposal
    assert ours is not None
    assert (ours.value, ours.limited_by, ours.recommend_only) == (3, None, "")


@pytest.mark.parametrize("primary", list(DiagnosisClass))
def test_no_engine_no_proposal(primary: DiagnosisClass) -> None:
    assert plan(situation(nobody(), primary=primary)).proposal is None


def test_the_same_input_gives_the_same_output() -> None:
    given = situation(with_steps(CAPPED, line(16, 32, 64, base=0.01, per_sequence=0.0004)), failed=[100])
    assert plan(given) == plan(replace(given))
