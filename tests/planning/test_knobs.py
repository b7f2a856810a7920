"""The knobs beside seats and replicas: when each is proposed, when only recommended, and when refused."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.builders import engine, nobody, observation
from tests.planning.situations import QWEN_32B, line, served, situation
from tests.scaling.loads import in_pods

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import AllowedInts, AllowedStrings, IntBounds, Tuning
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.engine.geometry import UnknownGeometry, geometry_named
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.context_length import longest_seen, shorter_context, shorter_to_start
from vllm_autotuner.planning.kv_type import smaller_kv_values
from vllm_autotuner.planning.parallelism import larger_degree, smaller_degree
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.platform import Platform, platform_named
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import Situation

FULL = served(
    observation(engine(running=60.0, waiting=40.0, kv=0.98)),
    steps=line(8, 16, 32, 60, base=0.014, per_sequence=0.0005),
)
"""60 sequences fill the pool: with a tenth left free it holds 55."""
TP2 = EngineKnobs(max_num_seqs=256, max_model_len=16_384, tensor_parallel_size=2)
OURS = replace(QWEN_32B, devices_ours=True)
FIFTY_SIX_HEADS = geometry_named("yi-34b")
FP8_LISTED = Tuning(kv_cache_dtype=AllowedStrings(allowed=("auto", "fp8")))
A100 = platform_named("Qwen/Qwen3-32B", gpu="NVIDIA-A100-SXM4-80GB", catalogue=Catalogue())
UNKNOWN_GPU = replace(QWEN_32B, gpu=None)
HYBRID = replace(QWEN_32B, shape=UnknownGeometry("a sliding window of 4096 tokens: bytes per token do not follow"))


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    tuning: Tuning = field(default_factory=Tuning)
    platform: Platform = OURS
    knobs: EngineKnobs = TP2
    seen: Observation = FULL
    failed: tuple[tuple[str, str], ...] = ()
    value: int | str | None = None
    """None: nothing is proposed."""
    applies: bool = False
    says: str = ""


def asked(case: Case, primary: DiagnosisClass = DiagnosisClass.KV_CACHE_SATURATED) -> Situation:
    return situation(
        case.seen,
        primary=primary,
        knobs=case.knobs,
        tuning=case.tuning,
        platform=case.platform,
        failed_values=case.failed,
    )


def check(case: Case, found: Proposal | NothingToGain) -> None:
    if case.value is None:
        assert isinstance(found, NothingToGain), found
        assert case.says in found.why
        return
    assert isinstance(found, Proposal), found
    assert (found.value, found.recommend_only == "") == (case.value, case.applies)
    assert case.says in f"{found.recommend_only} {found.reason}"


KV = (
    Case(id="listed, on a GPU that has it", tuning=FP8_LISTED, value="fp8", applies=True, says="twice the tokens"),
    Case(id="not listed: recommended, with what it risks", value="fp8", says="does not list fp8"),
    Case(
        id="listed without fp8 is a no",
        tuning=Tuning(kv_cache_dtype=AllowedStrings(allowed=("auto",))),
        says="does not allow fp8",
    ),
    Case(id="an older GPU", tuning=FP8_LISTED, platform=A100, says="compute capability 8.0; fp8 KV needs 8.9"),
    Case(id="an unknown GPU, not listed", platform=UNKNOWN_GPU, says="the GPU is not known"),
    Case(
        id="an unknown GPU, listed: recommended with the reason",
        tuning=FP8_LISTED,
        platform=UNKNOWN_GPU,
        value="fp8",
        says="set spec.accelerator.product",
    ),
    Case(
        id="an unknown cache, listed: recommended with the reason",
        tuning=FP8_LISTED,
        platform=HYBRID,
        value="fp8",
        says="sliding window",
    ),
    Case(
        id="fp8 already, by its flag",
        tuning=FP8_LISTED,
        knobs=TP2.updated(kv_cache_dtype="fp8"),
        says="already uses fp8",
    ),
    Case(
        id="fp8 already, by what the engine exports",
        tuning=FP8_LISTED,
        seen=served(FULL, pool=KVPool(tokens=282_496, cache_dtype="fp8_e4m3")),
        says="already uses fp8",
    ),
    Case(
        id="rolled back before",
        tuning=FP8_LISTED,
        failed=(("kvCacheDtype", "fp8"),),
        says="rolled back or declined before",
    ),
    Case(
        id="no free seats: the cache would stay empty",
        tuning=FP8_LISTED,
        knobs=EngineKnobs(max_num_seqs=56, tensor_parallel_size=2),
        says="max-num-seqs 56",
    ),
)


@pytest.mark.parametrize("case", KV, ids=lambda case: case.id)
def test_kv_type(case: Case) -> None:
    check(case, smaller_kv_values(asked(case)))


LISTED = Tuning(tensor_parallel_size=AllowedInts(allowed=(1, 2, 4)))
SLOW = DiagnosisClass.DECODE_BANDWIDTH_BOUND
DEGREES = (
    Case(id="the next listed degree", tuning=LISTED, value=4, applies=True, says="4 GPUs per replica"),
    Case(id="not listed: recommended", value=4, says="lists no sizes"),
    Case(
        id="never more than twice",
        tuning=Tuning(tensor_parallel_size=AllowedInts(allowed=(2, 8))),
        says="no larger size up to twice the current 2",
    ),
    Case(
        id="never one that is not listed",
        tuning=Tuning(tensor_parallel_size=AllowedInts(allowed=(2,))),
        says="no larger size up to twice",
    ),
    Case(
        id="heads that do not divide",
        tuning=Tuning(tensor_parallel_size=AllowedInts(allowed=(2, 3))),
        says="64 attention heads are not divisible by 3",
    ),
    Case(
        id="KV heads that can neither be split nor copied",
        tuning=Tuning(tensor_parallel_size=AllowedInts(allowed=(7, 14))),
        knobs=EngineKnobs(tensor_parallel_size=7),
        platform=replace(OURS, shape=FIFTY_SIX_HEADS),
        says="8 KV heads cannot be split or replicated evenly across 14 GPUs",
    ),
    Case(
        id="no node is that large",
        tuning=LISTED,
        platform=replace(OURS, free_gpus=FreeGpus(free=(2, 2), largest_node=2)),
        says="no node has 4 GPUs: the largest node has 2",
    ),
    Case(
        id="no node has so many free",
        tuning=LISTED,
        platform=replace(OURS, free_gpus=FreeGpus(free=(3, 2), largest_node=8)),
        says="no node has 4 free GPUs: at most 3 free on one",
    ),
    Case(
        id="one more fits, but not all of them in the end",
        tuning=LISTED,
        platform=replace(OURS, free_gpus=FreeGpus(free=(4,), largest_node=4, vacated=(3, 2), devices=2)),
        says="1 replica(s) of 4 GPUs do not fit",
    ),
    Case(
        id="the quota of the namespace",
        tuning=LISTED,
        platform=replace(OURS, free_gpus=FreeGpus(free=(8,), largest_node=8, quota=3)),
        says="ResourceQuota leaves 3 GPUs (4 needed)",
    ),
    Case(
        id="room enough",
        tuning=LISTED,
        platform=replace(OURS, free_gpus=FreeGpus(free=(4,), largest_node=8)),
        value=4,
        applies=True,
    ),
    Case(
        id="nobody looked for room: said, and harmless",
        tuning=LISTED,
        value=4,
        applies=True,
        says="The number of free GPUs is not known",
    ),
    Case(
        id="the operator does not set the devices",
        tuning=LISTED,
        platform=QWEN_32B,
        value=4,
        says="spec.accelerator is not set",
    ),
    Case(id="an unknown model, not listed", platform=HYBRID, says="sliding window"),
    Case(id="an unknown model, listed", tuning=LISTED, platform=HYBRID, value=4, says="sliding window"),
    Case(
        id="rolled back before",
        tuning=LISTED,
        failed=(("tensorParallelSize", "4"),),
        says="rolled back or declined before",
    ),
)


@pytest.mark.parametrize("case", DEGREES, ids=lambda case: case.id)
def test_larger_degree(case: Case) -> None:
    check(case, larger_degree(asked(case, SLOW)))


@pytest.mark.parametrize(
    ("primary", "target"),
    [
        (DiagnosisClass.PAST_TPOT_KNEE, ChangeTarget.TPOT),
        (DiagnosisClass.DECODE_BANDWIDTH_BOUND, ChangeTarget.TPOT),
        (DiagnosisClass.COMMUNICATION_BOUND, ChangeTarget.TPOT),
        (DiagnosisClass.KV_CACHE_SATURATED, ChangeTarget.TTFT),
        (DiagnosisClass.PREFILL_BOUND, ChangeTarget.TTFT),
    ],
)
def test_more_gpus_are_judged_by_what_is_slow(primary: DiagnosisClass, target: ChangeTarget) -> None:
    found = larger_degree(asked(Case(id="", tuning=LISTED), primary))
    assert isinstance(found, Proposal)
    assert found.target is target


def test_a_pod_of_several_engine_cores_keeps_its_degree() -> None:
    seen = in_pods(replace(FULL, engines=FULL.engines * 2), cores=2)
    case = Case(id="", tuning=LISTED, seen=seen, says="a pod runs 2 engine cores")
    check(case, larger_degree(asked(case, SLOW)))


def test_a_degree_that_does_not_hold_the_weights_is_refused() -> None:
    """Qwen3-32B takes 61 GiB: on one GPU of 44 it cannot start, whatever the speed says."""
    small = replace(platform_named("Qwen/Qwen3-32B", gpu="NVIDIA-L40S", catalogue=Catalogue()), devices_ours=True)
    seen = served(FULL, pool=KVPool(tokens=40_000, max_model_len=16_384))
    case = Case(id="", tuning=LISTED, platform=small, seen=seen, says="the weights do not fit")
    check(case, smaller_degree(asked(case, DiagnosisClass.COMMUNICATION_BOUND)))


@pytest.mark.parametrize("candidate", [larger_degree, smaller_degree])
def test_of_a_degree_that_is_not_known_none_is_larger_or_smaller(candidate: Callable[..., Any]) -> None:
    """`diagnose` without the engine's flags recommended 2 GPUs to a replica of 8."""
    case = asked(Case(id="", tuning=LISTED, knobs=EngineKnobs()), SLOW)
    found = candidate(replace(case, flags_known=False))
    assert isinstance(found, NothingToGain)
    assert "pass the engine's flags with --engine-args" in found.why
    told = replace(case, case=replace(case.case, knobs=TP2), flags_known=False)
    assert "is not known; pass" not in getattr(candidate(told), "why", "")


@pytest.mark.parametrize(
    ("size", "tuning", "smaller", "says"),
    [
        (1, Tuning(), True, "a smaller tensor-parallel size: a replica already uses one GPU"),
        (
            16,
            Tuning(),
            False,
            "1, 2, 4, 8 and 16 are looked at, and there is no larger size up to twice the current 16",
        ),
        (4, LISTED, False, "spec.tuning.tensorParallelSize allows no larger size up to twice the current 4"),
    ],
)
def test_why_there_is_no_other_degree_names_the_spec_only_where_it_says_so(
    size: int, tuning: Tuning, smaller: bool, says: str
) -> None:
    case = asked(Case(id="", tuning=tuning, knobs=TP2.updated(tensor_parallel_size=size)), SLOW)
    found = (smaller_degree if smaller else larger_degree)(case)
    assert isinstance(found, NothingToGain)
    assert says in found.why


def test_a_smaller_degree_gives_its_gpus_back() -> None:
    knobs = TP2.updated(tensor_parallel_size=4)
    seen = served(FULL, pool=KVPool(tokens=800_000, max_model_len=16_384))
    found = smaller_degree(
        asked(Case(id="", tuning=LISTED, knobs=knobs, seen=seen), DiagnosisClass.COMMUNICATION_BOUND)
    )
    assert isinstance(found, Proposal)
    assert (found.value, found.extra_gpus, found.recommend_only) == (2, -2, "")


def test_a_prediction_beyond_the_measured_gpus_is_a_guess() -> None:
    known = larger_degree(asked(Case(id="", tuning=LISTED), SLOW))
    assert isinstance(known, Proposal)
    assert known.confidence is Confidence.MEDIUM
    pcie = replace(OURS, gpu=Catalogue().gpu("NVIDIA-H100-PCIe"))
    guess = larger_degree(asked(Case(id="", tuning=LISTED, platform=pcie), SLOW))
    assert isinstance(guess, Proposal)
    assert guess.confidence is Confidence.LOW


BOUNDED = Tuning(max_model_len=IntBounds(min=1024, max=32_768))
SHORT = served(FULL, prompt=500.0, output=100.0, longest=2000.0)
LENGTHS = (
    Case(id="down to what was seen and a margin, at most halved", tuning=BOUNDED, seen=SHORT, value=8192),
    Case(
        id="never below the longest seen",
        tuning=BOUNDED,
        seen=served(FULL, prompt=500.0, output=1000.0, longest=9000.0),
        value=12_544,
    ),
    Case(
        id="needed as it is",
        tuning=BOUNDED,
        seen=served(FULL, prompt=500.0, output=1000.0, longest=14_000.0),
        says="requests had up to 15000 tokens",
    ),
    Case(
        id="the edge of a bucket lies beyond what the engine takes",
        tuning=BOUNDED,
        seen=served(FULL, prompt=500.0, output=1000.0, longest=30_000.0),
        says="requests had up to 16384 tokens",
    ),
    Case(
        id="bounds that would refuse requests are refused themselves",
        tuning=Tuning(max_model_len=IntBounds(min=256, max=1024)),
        seen=SHORT,
        says="requests had up to",
    ),
    Case(
        id="the lower bound holds",
        tuning=Tuning(max_model_len=IntBounds(min=10_000, max=32_768)),
        seen=SHORT,
        value=10_000,
    ),
    Case(
        id="one request too long for any bucket",
        tuning=BOUNDED,
        seen=replace(SHORT, prompt_length=replace(SHORT.prompt_length, buckets={100.0: 1.0, float("inf"): 2.0})),
        says="request lengths are not known",
    ),
    Case(
        id="nobody knows the length that is allowed",
        seen=served(SHORT, pool=KVPool(tokens=9)),
        knobs=EngineKnobs(),
        says="max-model-len is not known",
    ),
    Case(id="rolled back before", seen=SHORT, failed=(("maxModelLen", "8192"),), says="rolled back or declined before"),
)


@pytest.mark.parametrize("case", LENGTHS, ids=lambda case: case.id)
def test_shorter_context(case: Case) -> None:
    check(case, shorter_context(asked(case)))


@pytest.mark.parametrize(
    ("suggested", "knobs", "tuning", "value"),
    [
        pytest.param(17_920, EngineKnobs(max_model_len=32_000), BOUNDED, 17_920, id="what fits"),
        pytest.param(18_000, EngineKnobs(max_model_len=32_000), BOUNDED, 17_920, id="in whole granules"),
        pytest.param(100, EngineKnobs(), Tuning(), None, id="a cache that holds no request like those served"),
        pytest.param(None, EngineKnobs(), Tuning(), None, id="the engine does not say"),
        pytest.param(0, EngineKnobs(), Tuning(), None, id="nothing fits"),
        pytest.param(500, EngineKnobs(max_model_len=32_000), BOUNDED, None, id="bounds that ask for more than fits"),
        pytest.param(9000, EngineKnobs(max_model_len=8192), BOUNDED, None, id="already shorter"),
    ],
)
def test_a_length_that_starts(suggested: int | None, knobs: EngineKnobs, tuning: Tuning, value: int | None) -> None:
    given = situation(FULL, primary=DiagnosisClass.STARTUP_FAILURE, knobs=knobs, tuning=tuning)
    found = shorter_to_start(given, suggested=suggested)
    assert (found.value if isinstance(found, Proposal) else None) == value


def test_an_engine_that_never_served_tells_no_lengths_to_keep() -> None:
    given = situation(nobody(), primary=DiagnosisClass.STARTUP_FAILURE, knobs=EngineKnobs(max_model_len=32_000))
    found = shorter_to_start(given, suggested=100)
    assert isinstance(found, Proposal)
    assert (found.value, found.target) == (100, ChangeTarget.START)


@pytest.mark.parametrize(("tuning", "applies"), [(BOUNDED, True), (Tuning(), False)], ids=["bounds", "no bounds"])
def test_a_length_that_starts_is_applied_within_bounds_and_says_what_it_rejects(tuning: Tuning, applies: bool) -> None:
    given = situation(
        SHORT, primary=DiagnosisClass.STARTUP_FAILURE, knobs=EngineKnobs(max_model_len=32_000), tuning=tuning
    )
    found = shorter_to_start(given, suggested=17_920)
    assert isinstance(found, Proposal)
    assert (found.recommend_only == "", found.target) == (applies, ChangeTarget.START)
    assert "Requests of more than 17920 tokens would be rejected" in found.reason
    failed = replace(given, failed=(("maxModelLen", "17920"),))
    assert isinstance(shorter_to_start(failed, suggested=17_920), NothingToGain)


@pytest.mark.parametrize(
    ("tuning", "seen", "companion"),
    [
        pytest.param(
            Tuning(tensor_parallel_size=AllowedInts(allowed=(1, 2)), max_model_len=IntBounds(min=1024, max=32_768)),
            SHORT,
            True,
            id="requests are short, and bounds are set",
        ),
        pytest.param(Tuning(tensor_parallel_size=AllowedInts(allowed=(1, 2))), SHORT, False, id="no bounds"),
        pytest.param(
            Tuning(tensor_parallel_size=AllowedInts(allowed=(1, 2)), max_model_len=IntBounds(min=1024, max=32_768)),
            served(FULL, prompt=500.0, output=1000.0, longest=14_000.0),
            False,
            id="requests are too long",
        ),
    ],
)
def test_a_smaller_degree_that_holds_no_request_of_the_present_limit_takes_a_shorter_one_along(
    tuning: Tuning, seen: Observation, companion: bool
) -> None:
    """One GPU holds 14,000 to 19,000 tokens of this model, and the limit is 16,384."""
    found = smaller_degree(asked(Case(id="", tuning=tuning, seen=seen), DiagnosisClass.COMMUNICATION_BOUND))
    assert (isinstance(found, Proposal) and found.max_model_len == 13_568) is companion, found


@pytest.mark.parametrize(
    ("slots", "knobs", "taken"),
    [
        pytest.param((1, 1024), {"max_num_seqs": 1024}, 174, id="1024 slots"),
        pytest.param((1, 1024), {}, 174, id="1024 by default"),
        pytest.param((1, 1024), {"max_num_seqs": 128}, None, id="few already"),
        pytest.param(None, {"max_num_seqs": 1024}, None, id="no bounds"),
        pytest.param((512, 1024), {"max_num_seqs": 1024}, 512, id="the user's minimum"),
    ],
)
def test_a_smaller_degree_takes_the_memory_of_unused_slots_along(
    slots: tuple[int, int] | None, knobs: dict[str, Any], taken: int | None
) -> None:
    """One GPU has about 16,000 tokens beside 1024 slots, and 23,000 more without them: 174 take a tenth of that."""
    allowed = None if slots is None else IntBounds(min=slots[0], max=slots[1])
    given = Tuning(tensor_parallel_size=AllowedInts(allowed=(1, 2)), max_num_seqs=allowed)
    now = EngineKnobs(max_model_len=4096, tensor_parallel_size=2).updated(**knobs)
    case = Case(id="", tuning=given, seen=SHORT, knobs=now)
    found = smaller_degree(asked(case, DiagnosisClass.COMMUNICATION_BOUND))
    assert isinstance(found, Proposal), found
    assert found.max_num_seqs == taken
    assert ("Fewer slots leave the KV cache" in found.reason) is (taken is not None)
    failed = smaller_degree(asked(replace(case, failed=(("maxNumSeqs", "100"),)), DiagnosisClass.COMMUNICATION_BOUND))
    assert isinstance(failed, Proposal)
    assert failed.max_num_seqs == taken, "100 slots failed beside another KV cache"
    upwards = larger_degree(asked(replace(case, knobs=now.updated(tensor_parallel_size=1))))
    assert isinstance(upwards, Proposal), upwards
    assert upwards.max_num_seqs is None


def test_the_longest_request_is_bounded_by_both_its_parts() -> None:
    assert longest_seen(served(FULL, prompt=500.0, output=100.0, longest=2000.0)) == 2100
