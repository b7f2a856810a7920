"""What a healthy service is offered: settings by which the load of now needs fewer GPUs, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
from tests.builders import NOW, targets
from tests.planning.situations import QWEN_32B, bounds, scaling, situation, steady

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import AllowedInts, AllowedStrings, IntBounds, Scaling, Tuning
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.performance.kv_capacity import UnknownPool
from vllm_autotuner.planning.forecast import pool_with
from vllm_autotuner.planning.max_num_seqs import fit_to_kv_cache
from vllm_autotuner.planning.plan import Plan, plan
from vllm_autotuner.planning.platform import Platform, platform_named
from vllm_autotuner.planning.proposal import NothingToGain, Proposal

TWO_ENGINES = steady(9, 18, 12, base=0.014, per_sequence=0.0003)
"""5.6 requests/s, which one engine serves with about 44 sequences; 0.005 of the KV cache each."""
SLOTS = 20
"""With so many one engine serves 3.3 requests/s."""


CALM: dict[str, Any] = {"primary": DiagnosisClass.HEALTHY, "seats": SLOTS, "replicas": 2, "scale": scaling()}


def healthy(seen: Observation = TWO_ENGINES, **given: Any) -> Plan:
    return plan(situation(seen, **{**CALM, **given}))


def why_not(found: Plan, value: str) -> str:
    assert found.proposal is None
    return next((why for why in found.passed_over if value in why), f"not asked for: {found.passed_over}")


@pytest.mark.parametrize("primary", [DiagnosisClass.HEALTHY, DiagnosisClass.UNDERUTILIZED])
def test_a_healthy_service_with_too_few_slots_is_offered_a_saving(primary: DiagnosisClass) -> None:
    found = healthy(primary=primary).proposal
    assert found is not None
    assert (found.knob, found.target, found.recommend_only) == (Knob.MAX_NUM_SEQS, ChangeTarget.GPUS, "")
    # As far as tokens are surely in time and the line is to be trusted, not to twice the value.
    assert found.count == 68
    assert "saves 1 of 2 GPUs (24 GPU-hours a day)" in found.reason
    needs = next(each for each in found.predicted if each.name == "GPUs that the load needs")
    assert (needs.current, needs.predicted) == (2, 1)


def saving_off() -> Tuning:
    return Tuning(save_gpus=False, max_num_seqs=IntBounds(min=1, max=4096))


def test_a_user_may_want_no_change_while_objectives_are_met() -> None:
    assert "spec.tuning.saveGpus is off" in why_not(healthy(tuning=saving_off()), "maxNumSeqs")


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"scale": scaling(low=2)}, id="the user's minimum keeps both"),
        pytest.param({"scale": None}, id="replicas are the user's own"),
        pytest.param({"tuning": bounds(1, 26)}, id="two are needed with the most slots that are allowed"),
        pytest.param({"replicas": 1, "seats": 64}, id="one replica is all there is"),
    ],
)
def test_where_no_replica_would_go_nothing_is_proposed(given: dict[str, Any]) -> None:
    assert "the load needs as many GPUs with it" in why_not(healthy(**given), "maxNumSeqs")


def test_what_was_too_few_is_needed_whatever_the_model_says() -> None:
    """One replica of 50 slots is enough by the model, and was not: requests waited for a slot."""
    now = situation(TWO_ENGINES, **{**CALM, "seats": 50})
    assert plan(now).proposal is None
    found = plan(replace(now, too_few=1)).proposal
    assert found is not None
    assert found.knob is Knob.MAX_NUM_SEQS
    assert "saves 1 of 2 GPUs" in found.reason


def test_a_saving_without_bounds_is_recommended_only() -> None:
    found = healthy(tuning=Tuning()).proposal
    assert found is not None
    assert "sets no bounds" in found.recommend_only


def test_a_value_that_failed_before_saves_nothing() -> None:
    assert "the load needs as many GPUs with it" in why_not(healthy(failed=[28]), "maxNumSeqs 24")


def test_nothing_is_saved_that_puts_tokens_over_their_objective() -> None:
    """Two engines at 12 each make a token in 27 ms; all on one in 40 ms, where 34 ms are wanted."""
    slow = steady(9, 18, 12, base=0.02, per_sequence=0.0006)
    strict = replace(situation().targets, tpot=replace(situation().targets.tpot, seconds=0.034))
    assert "TPOT knee" in why_not(healthy(slow, against=strict), "max-num-seqs 20")


@pytest.mark.parametrize("minutes", [1.5, 5.0])
def test_a_few_minutes_of_load_are_too_little_to_save_gpus_by(minutes: float) -> None:
    """What came a while ago may come again: a change outlasts the moment."""
    short = steady(9, 18, 12, base=0.014, per_sequence=0.0003, minutes=minutes)
    assert "too few minutes of this load were seen" in why_not(healthy(short), "maxNumSeqs")


def test_a_load_that_has_just_fallen_may_come_back() -> None:
    """A quarter of an hour of night after a day: a smaller setting would be taken back in hours."""
    fallen = replace(
        TWO_ENGINES,
        steps=tuple(
            replace(one, tokens=one.tokens * (4 if one.time is not None and one.time < NOW - 900 else 1))
            for one in TWO_ENGINES.steps
        ),
    )
    assert "too few minutes of this load were seen" in why_not(healthy(fallen), "maxNumSeqs")


FP8 = Tuning(kv_cache_dtype=AllowedStrings(allowed=("auto", "fp8")))
TP2 = EngineKnobs(max_num_seqs=256, max_model_len=16_384, tensor_parallel_size=2)
OURS = replace(QWEN_32B, devices_ours=True)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"seats": 1024, "tuning": FP8, "platform": QWEN_32B}, id="fp8, as TPOT is the limit"),
        pytest.param({"seats": 66}, id="more slots than TPOT lets run"),
    ],
)
def test_what_was_too_few_is_not_saved_by_a_setting_that_serves_no_more(given: dict[str, Any]) -> None:
    now = situation(TWO_ENGINES, **{**CALM, **given})
    assert plan(now).proposal is None
    assert plan(replace(now, too_few=1)).proposal is None


def test_while_objectives_are_missed_what_was_too_few_decides_nothing() -> None:
    now = situation(TWO_ENGINES, **{**CALM, "seats": 50, "primary": DiagnosisClass.KV_CACHE_SATURATED})
    assert plan(replace(now, too_few=1)) == plan(now)


def test_fp8_saves_a_replica_where_the_kv_cache_is_the_limit() -> None:
    """22 sequences fill nine tenths of the cache: 3.6 requests/s. Twice as many serve the 4.2 that come on one."""
    held = steady(6, 12, 9, base=0.014, per_sequence=0.0003, kv_each=0.04)
    found = healthy(held, knobs=TP2, tuning=FP8, platform=QWEN_32B).proposal
    assert found is not None
    assert (found.knob, found.value, found.target) == (Knob.KV_CACHE_DTYPE, "fp8", ChangeTarget.GPUS)
    assert "saves 2 of 4 GPUs" in found.reason
    roomy = steady(6, 12, 9, base=0.014, per_sequence=0.0003, kv_each=0.004)
    assert healthy(roomy, knobs=TP2, tuning=FP8, platform=QWEN_32B).proposal is None


ONE_GPU = EngineKnobs(max_num_seqs=1024, max_model_len=8192, tensor_parallel_size=1)
SMALL = KVPool(tokens=18_176, max_model_len=8192, cache_dtype="auto")
LOAD: dict[str, Any] = {"base": 0.014, "per_sequence": 0.0003, "kv_each": 0.04}
FULL = steady(6, 12, 9, **LOAD, pool=SMALL)
"""22 sequences fill nine tenths of what 1024 slots leave to the cache; without slots it would hold 2.27 times as many,
and 182 of them take a tenth of that."""


def test_the_memory_of_unused_slots_saves_a_replica() -> None:
    found = healthy(FULL, knobs=ONE_GPU, platform=QWEN_32B).proposal
    assert found is not None
    assert (found.knob, found.count, found.target) == (Knob.MAX_NUM_SEQS, 182, ChangeTarget.GPUS)
    assert "saves 1 of 2 GPUs" in found.reason
    assert found.kv_cache_tokens == 18_176
    cache = next(each for each in found.predicted if each.name == "KV cache")
    assert cache.current == 18_176
    assert cache.predicted == pytest.approx(18_176 + 842 * 39 * 151_936 / 262_144)


UNSET = EngineKnobs(max_model_len=8192, tensor_parallel_size=1)


def test_where_the_flag_is_left_out_the_engine_has_its_default() -> None:
    found = healthy(FULL, knobs=UNSET, platform=QWEN_32B).proposal
    assert found is not None
    assert (found.knob, found.current, found.count, found.recommend_only) == (Knob.MAX_NUM_SEQS, None, 182, "")
    assert "max-num-seqs 1024 (the default, if no flag sets it)" in found.reason
    fewer = healthy(FULL, knobs=UNSET, platform=replace(QWEN_32B, step_tokens=256))
    assert any("as many GPUs" in why for why in fewer.passed_over if "maxNumSeqs" in why), "256 take a quarter of it"


def test_the_users_maximum_holds_for_what_becomes_of_unused_slots() -> None:
    found = healthy(FULL, knobs=ONE_GPU, platform=QWEN_32B, tuning=bounds(1, 128)).proposal
    assert found is not None
    assert (found.count, found.limited_by) == (128, "spec.tuning.maxNumSeqs.max")


@pytest.mark.parametrize(("left", "again"), [("1024", True), ("600", True), ("190", False), ("182", False)])
def test_a_number_like_one_that_was_left_is_not_returned_to(left: str, again: bool) -> None:
    now = replace(situation(FULL, **CALM, knobs=ONE_GPU, platform=QWEN_32B), left=(("maxNumSeqs", left),))
    found = plan(now).proposal
    assert (found is not None and found.knob is Knob.MAX_NUM_SEQS) == again


THRASHES: dict[str, Any] = {"primary": DiagnosisClass.PREEMPTION_THRASH, "knobs": ONE_GPU, "platform": QWEN_32B}


def test_a_thrashing_cache_is_fitted_to_what_it_holds_beside_so_few_slots() -> None:
    """22 sequences beside 1024 slots, 48 beside as many: with 22 slots more than half of it would stand empty."""
    crowded = steady(12, 24, 30, **LOAD, pods=1, pool=SMALL, waiting=5.0)
    found = fit_to_kv_cache(situation(crowded, **THRASHES))
    assert isinstance(found, Proposal)
    # TTFT fell from 50 s to 0.2 s, and the change was undone as TPOT, in time before, stayed (closed loop, kv-fp8).
    assert (found.value, found.kv_cache_tokens, found.target) == (48, 18_176, ChangeTarget.TTFT)
    assert "holds 22 sequences" in found.reason
    assert "it holds 48" in found.reason
    given = steady(12, 24, 30, **LOAD, pods=1, pool=replace(SMALL, given=True), waiting=5.0)
    behind = fit_to_kv_cache(situation(given, **THRASHES))
    assert isinstance(behind, NothingToGain)
    assert behind.why == "with max-num-seqs 22 a replica finishes 4.17 requests/s, and 5.10 come"
    fewer = steady(12, 20, 24, **LOAD, pods=1, pool=replace(SMALL, given=True), waiting=5.0)
    as_held = fit_to_kv_cache(situation(fewer, **THRASHES))
    assert isinstance(as_held, NothingToGain)
    assert as_held.why == "tokens come in time, and with fewer slots the KV cache would hold no more sequences"
    late = fit_to_kv_cache(situation(fewer, **THRASHES, against=targets(tpot=0.01)))
    assert isinstance(late, Proposal)
    assert (late.value, late.kv_cache_tokens) == (22, None)


def test_a_value_that_a_bound_has_raised_counts_on_no_larger_cache() -> None:
    """Its trial would end as its pods export none."""
    given = steady(12, 24, 30, **LOAD, pods=1, pool=replace(SMALL, given=True), waiting=5.0)
    found = fit_to_kv_cache(situation(given, **THRASHES, tuning=bounds(26, 1024), against=targets(tpot=0.01)))
    assert isinstance(found, Proposal)
    assert (found.value, found.kv_cache_tokens) == (26, None)
    assert "memory" not in found.reason


def test_a_cache_that_the_user_has_set_gains_nothing_from_fewer_slots() -> None:
    found = healthy(steady(6, 12, 9, **LOAD, pool=replace(SMALL, given=True)), knobs=ONE_GPU, platform=QWEN_32B)
    assert any("flags set the size of its KV cache" in each for each in found.passed_over), found.passed_over


def test_what_a_cache_that_the_user_has_set_is_with_more_gpus_is_not_foretold() -> None:
    given = situation(steady(6, 12, 9, **LOAD, pool=replace(SMALL, given=True)), **CALM, knobs=ONE_GPU)
    assert isinstance(pool_with(given, degree=2), UnknownPool)


@pytest.mark.parametrize(("blocks", "asked"), [(True, False), (False, True)])
def test_fp8_holds_more_in_given_bytes_and_not_in_given_blocks(blocks: bool, asked: bool) -> None:
    pool = replace(SMALL, tokens=200_000, given=True, blocks_given=blocks)
    held = steady(6, 12, 9, base=0.014, per_sequence=0.0003, kv_each=0.04, pool=pool)
    found = healthy(held, knobs=TP2, tuning=FP8, platform=QWEN_32B)
    assert (found.proposal is not None and found.proposal.knob is Knob.KV_CACHE_DTYPE) is asked, found.passed_over
    assert found.proposal is None or found.proposal.kv_cache_tokens == 200_000


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param({"knobs": UNSET, "platform": replace(QWEN_32B, gpu=None)}, "is not known", id="no GPU"),
        pytest.param(
            {"knobs": UNSET, "primary": DiagnosisClass.CONCURRENCY_CAPPED},
            "is not known",
            id="not the default",
        ),
        pytest.param({"knobs": ONE_GPU.model_copy(update={"max_num_seqs": 48})}, "far enough", id="few already"),
        pytest.param({"platform": Platform()}, "the memory of slots", id="the model is not known"),
        pytest.param({"tuning": bounds(1000, 2048)}, "far enough", id="the user wants many"),
        pytest.param({"tuning": bounds(1, 8)}, "far enough", id="more run than the user wants"),
        pytest.param({"knobs": ONE_GPU.model_copy(update={"max_num_seqs": 160})}, "within noise", id="little to free"),
        pytest.param({"failed": [100]}, "100 was rolled back or declined", id="it failed before"),
    ],
)
def test_the_memory_of_slots_is_left_where(given: dict[str, Any], why: str) -> None:
    found = healthy(FULL, **{"knobs": ONE_GPU, "platform": QWEN_32B, **given})
    assert found.proposal is None or found.proposal.knob is not Knob.MAX_NUM_SEQS
    assert any(why in each for each in found.passed_over), found.passed_over


DEGREES = Tuning(tensor_parallel_size=AllowedInts(allowed=(1, 2, 4)))
LIGHT = steady(6, 12, 9, base=0.012, per_sequence=0.0002, kv_each=0.002, pods=1, pool=KVPool(tokens=800_000))
FOUR = EngineKnobs(max_num_seqs=256, max_model_len=4096, tensor_parallel_size=4)


def test_a_smaller_degree_saves_gpus_where_one_suffices() -> None:
    found = healthy(LIGHT, knobs=FOUR, replicas=1, tuning=DEGREES, platform=OURS).proposal
    assert found is not None
    assert (found.knob, found.value, found.target) == (Knob.TENSOR_PARALLEL_SIZE, 2, ChangeTarget.GPUS)
    assert (found.extra_gpus, "saves 2 of 4 GPUs" in found.reason) == (-2, True)


def test_a_smaller_degree_whose_tokens_would_be_late_is_refused() -> None:
    """12 ms are 20 ms on half of the GPUs."""
    strict = replace(situation().targets, tpot=replace(situation().targets.tpot, seconds=0.018))
    found = healthy(LIGHT, knobs=FOUR, replicas=1, tuning=DEGREES, platform=OURS, against=strict)
    assert found.proposal is None
    assert "over the objective that is met now" in why_not(found, "tensorParallelSize 2")


@pytest.mark.parametrize("primary", [DiagnosisClass.HEALTHY, DiagnosisClass.UNDERUTILIZED])
def test_a_healthy_service_is_never_offered_more_gpus(primary: DiagnosisClass) -> None:
    larger = Tuning(tensor_parallel_size=AllowedInts(allowed=(2, 4)))
    found = healthy(LIGHT, primary=primary, knobs=TP2, replicas=1, tuning=larger, platform=OURS)
    assert "the load would need more GPUs" in why_not(found, "tensorParallelSize 4")


STARVED = steady(18, 30, 24, **LOAD, pool=SMALL)
"""22 sequences fill nine tenths of the cache of each of two engines, and 24 run."""


def test_a_larger_cache_is_judged_by_doing_no_harm_though_requests_are_late() -> None:
    saturated, scale = DiagnosisClass.KV_CACHE_SATURATED, scaling(high=8)
    found = healthy(STARVED, primary=saturated, knobs=ONE_GPU, platform=QWEN_32B, scale=scale).proposal
    assert found is not None
    assert (found.knob, found.target) == (Knob.MAX_NUM_SEQS, ChangeTarget.GPUS)


def test_gpus_that_are_to_come_are_not_told_as_saved() -> None:
    """By the model the load needs a third replica, which would be the next to come; with the setting it does not."""
    found = healthy(STARVED, knobs=ONE_GPU, platform=QWEN_32B, scale=scaling(high=8)).proposal
    assert found is not None
    assert (found.knob, found.target) == (Knob.MAX_NUM_SEQS, ChangeTarget.GPUS)
    assert "(2 are in use)" in found.reason
    assert "saves" not in found.reason


@pytest.mark.parametrize("scale", [None, scaling(1, 1)])
def test_a_smaller_degree_that_may_not_serve_the_load_is_refused(scale: Scaling | None) -> None:
    """Where no replica can be added, those that would be needed must not count as those there are."""
    busy = steady(
        22, 33, 44, base=0.0065, per_sequence=0.00006, pods=1, kv_each=0.0012, prefill=0.005, prompt=1024, output=256,
        pool=KVPool(tokens=900_000),
    )  # fmt: skip
    knobs, allowed = EngineKnobs(max_num_seqs=64, tensor_parallel_size=2), AllowedInts(allowed=(1, 2))
    platform = replace(
        platform_named("meta-llama/Llama-3.1-8B", gpu="NVIDIA-H100-80GB-HBM3", catalogue=Catalogue()), devices_ours=True
    )
    found = healthy(
        busy, knobs=knobs, replicas=1, tuning=Tuning(tensor_parallel_size=allowed), platform=platform, scale=scale
    )
    assert "may not serve the load" in why_not(found, "tensorParallelSize 1")


BOTH = Tuning(tensor_parallel_size=AllowedInts(allowed=(1, 2)), max_num_seqs=IntBounds(min=1, max=4096))


@pytest.mark.parametrize(
    ("scale", "first"),
    [
        pytest.param(scaling(high=8), Knob.TENSOR_PARALLEL_SIZE, id="it needs fewer than the replicas that would come"),
        pytest.param(scaling(high=2), Knob.TENSOR_PARALLEL_SIZE, id="one of it takes the GPUs of the two"),
        pytest.param(None, Knob.MAX_NUM_SEQS, id="the replicas are the user's own"),
    ],
)
def test_a_larger_degree_adds_gpus_only_where_the_load_needs_more(scale: Scaling | None, first: Knob) -> None:
    full = {"primary": DiagnosisClass.KV_CACHE_SATURATED, "knobs": ONE_GPU, "tuning": BOTH, "platform": OURS}
    found = healthy(STARVED, **full, scale=scale)
    assert found.proposal is not None
    assert found.proposal.knob is first
