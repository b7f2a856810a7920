"""What is chosen among candidates, what it is predicted to do, and why the others lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import targets
from tests.planning.situations import QWEN_32B, lengths, scaling, situation, steady
from tests.scaling.loads import in_pods

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import AllowedStrings, IntBounds, Tuning
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.startup_log import StartupFailure, StartupReason
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.pod_starts import PodStart, PodsView
from vllm_autotuner.planning.forecast import Outlook, current_setting, outlook, setting_with
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.worth import comes_closer, not_worth, order


def full(*, waiting: float = 40.0) -> Observation:
    """60 sequences fill the KV cache, 40 wait: 7.3 requests/s come, and 55 sequences serve 6.6."""
    return steady(8, 16, 32, 60, base=0.014, per_sequence=0.0003, pods=1, kv_each=0.98 / 60, waiting=waiting, ttft=8.0)


FULL = full()
TP2 = EngineKnobs(max_num_seqs=256, max_model_len=16_384, tensor_parallel_size=2)
FP8 = Tuning(kv_cache_dtype=AllowedStrings(allowed=("auto", "fp8")))


def test_what_needs_fewer_gpus_comes_first_and_the_runner_up_says_why_it_lost() -> None:
    found = plan(situation(FULL, knobs=TP2, tuning=FP8, platform=QWEN_32B, scale=scaling()))
    knobs = [(each.proposal.knob, each.lost) for each in found.considered]
    assert knobs[0] == (Knob.KV_CACHE_DTYPE, "")
    assert knobs[1] == (Knob.REPLICAS, "it adds GPUs; kvCacheDtype fp8 adds none")


def test_what_may_be_applied_comes_before_what_may_only_be_recommended() -> None:
    found = plan(situation(FULL, knobs=TP2, platform=QWEN_32B, scale=scaling()))
    assert [each.proposal.knob for each in found.considered][:2] == [Knob.REPLICAS, Knob.KV_CACHE_DTYPE]
    assert "recommended only: spec.tuning.kvCacheDtype does not list fp8" in found.considered[1].lost


def test_a_cure_that_costs_twice_the_gpus_and_heals_no_more_is_passed_over() -> None:
    found = plan(situation(FULL, knobs=TP2, tuning=FP8, platform=QWEN_32B, scale=scaling()))
    assert [why for why in found.passed_over if "tensorParallelSize 4" in why]


def test_the_predicted_effects_of_fp8() -> None:
    """Twice the tokens; 55 sequences become 110, and what came in vain is served: nothing waits any more."""
    found = plan(situation(FULL, knobs=TP2, tuning=FP8, platform=QWEN_32B)).considered[0]
    now = {each.name: each.current for each in found.proposal.predicted}
    then = {each.name: each.predicted for each in found.proposal.predicted}
    held, capacity, waits = "sequences that the KV cache holds", "capacity of a replica", 0.02
    assert (now["KV cache"], now[held]) == (282_496, 55)
    assert then["KV cache"] == pytest.approx(564_992)
    assert then[held] == pytest.approx(110)
    assert now[capacity] == pytest.approx(6.6, rel=0.02)
    assert then[capacity] == pytest.approx(8.9, rel=0.02)
    # More come than 55 slots serve: that queue has no end, and so no number.
    assert now["TTFT"] is None
    assert then["TTFT"] == pytest.approx(waits, rel=0.5)
    assert then["goodput"] == pytest.approx(7.32 * 256, rel=0.01)


def test_a_length_that_fits_is_the_cure_of_an_engine_that_does_not_start() -> None:
    failure = StartupFailure(reason=StartupReason.INSUFFICIENT_KV_CACHE, message="", suggested_max_model_len=17_920)
    pods = PodsView(pods=(PodStart(name="chat-0", ready_for=None, failure=failure),))
    seen, knobs = replace(FULL, engines=(), pods=pods), EngineKnobs(max_model_len=32_000)
    for tuning, says in ((Tuning(), "maxModelLen"), (Tuning(max_model_len=IntBounds(min=1024, max=32_768)), "")):
        given_ = situation(seen, primary=DiagnosisClass.STARTUP_FAILURE, knobs=knobs, tuning=tuning)
        found = plan(given_).proposal
        assert found is not None
        assert (found.knob, found.value) == (Knob.MAX_MODEL_LEN, 17_920)
        assert says in found.recommend_only


def test_more_demand_is_never_served_faster() -> None:
    """The forecast itself: with every request more, tokens and first tokens come no sooner."""
    known = []
    for batch in (10, 20, 40, 60):
        seen = steady(8, 16, 32, batch, base=0.014, per_sequence=0.0003, pods=1)
        given_ = situation(seen, primary=DiagnosisClass.HEALTHY, knobs=EngineKnobs(max_num_seqs=64))
        known.append(outlook(current_setting(given_), situation=given_))
    for figure in ([each.tpot for each in known], [each.tokens_per_second for each in known]):
        values = [each for each in figure if each is not None]
        assert (len(values), values) == (4, sorted(values))


@pytest.mark.parametrize(
    ("knob", "value", "waits"),
    [
        pytest.param(Knob.MAX_NUM_SEQS, 128, False, id="more slots"),
        pytest.param(Knob.MAX_NUM_SEQS, 80, False, id="some more than run"),
        pytest.param(Knob.MAX_NUM_SEQS, 30, True, id="more come than half of them serve"),
        pytest.param(Knob.REPLICAS, 2, False, id="more replicas"),
    ],
)
def test_where_nothing_waits_too_few_slots_make_a_queue(knob: Knob, value: int, waits: bool) -> None:
    calm = steady(8, 16, 32, 60, base=0.014, per_sequence=0.0003, pods=1, ttft=0.4)
    given_ = situation(calm, primary=DiagnosisClass.PAST_TPOT_KNEE, knobs=EngineKnobs(max_num_seqs=128))
    then = outlook(setting_with(current_setting(given_), knob, value, situation=given_), situation=given_)
    # A queue without an end has no figure.
    assert (then.ttft is None) == waits
    assert then.missing is not None
    assert (then.missing > 0.1) == waits
    assert waits or (then.ttft is not None and then.ttft <= 0.4 * 1.02)


def test_where_a_queue_ends_long_prompts_stay_long() -> None:
    """All have waited alike; what is left at the 95th percentile is the prefill of a prompt four times the mean."""
    seen = steady(8, 16, 32, 60, base=0.014, per_sequence=0.0003, pods=1, waiting=40.0, ttft=8.0)
    given_ = situation(
        replace(seen, prompt_length=lengths(4096.0)),
        primary=DiagnosisClass.CONCURRENCY_CAPPED,
        knobs=EngineKnobs(max_num_seqs=60),
    )
    wider = setting_with(current_setting(given_), Knob.MAX_NUM_SEQS, 160, situation=given_)
    # 0.08 s of its own, while prompts take a seventh of the time.
    assert outlook(wider, situation=given_).ttft == pytest.approx(0.08 / (1 - 0.146), rel=0.05)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_pod_of_several_engine_cores_has_their_capacity_and_gpus(cores: int) -> None:
    seen = in_pods(steady(8, 16, 32, 60, base=0.014, per_sequence=0.0003, pods=2 * cores), cores=cores)
    given_ = situation(seen, primary=DiagnosisClass.HEALTHY, knobs=EngineKnobs(max_num_seqs=64), replicas=2)
    alone = situation(
        steady(8, 16, 32, 60, base=0.014, per_sequence=0.0003, pods=2),
        primary=DiagnosisClass.HEALTHY,
        knobs=EngineKnobs(max_num_seqs=64),
        replicas=2,
    )
    found, one = (outlook(current_setting(each), situation=each) for each in (given_, alone))
    assert (found.gpus, found.needed_gpus) == (2 * cores, (one.needed_gpus or 0) * cores)
    assert found.needed == one.needed
    assert found.tpot == pytest.approx(one.tpot, rel=0.01)
    assert found.ttft == pytest.approx(one.ttft, rel=0.03)
    assert found.capacity == pytest.approx((one.capacity or 0.0) * cores)
    assert found.tokens_per_second == pytest.approx((one.tokens_per_second or 0.0) * cores)


def effects(**changes: float | None) -> Outlook:
    known: dict[str, float | None] = {
        "tpot": 0.04, "ttft": 1.0, "goodput": 1000.0, "capacity": 5.0, "needed": 2, "needed_gpus": 2, "missing": 0.0,
        "gpus": 2, "surely_enough": True,
    }  # fmt: skip
    return Outlook(**{**known, **changes})  # type: ignore[arg-type]  # fields by name


SHORT = {"missing": 0.3, "needed": 2}
"""Three of ten requests are beyond what all replicas that are allowed serve."""


@pytest.mark.parametrize(
    ("before", "after", "given_", "says"),
    [
        pytest.param(SHORT, {"missing": 0.15}, {}, "", id="half of the requests that miss"),
        pytest.param(SHORT, {"missing": 0.25}, {}, "a replica would serve", id="noise"),
        pytest.param({"missing": 0.05}, {"missing": 0.0}, {}, "", id="the last ones that miss"),
        pytest.param(SHORT, {"missing": 0.15, "tpot": 0.06}, {}, "over the objective that is met", id="at TPOT's cost"),
        pytest.param(
            {**SHORT, "tpot": 0.07}, {"missing": 0.15, "tpot": 0.06}, {}, "", id="TPOT is late either way"
        ),
        pytest.param({}, {"missing": 0.2}, {}, "20% of the requests would be beyond", id="more requests that miss"),
        pytest.param({}, {"needed_gpus": 4}, {}, "would need more GPUs", id="more GPUs for as much"),
        pytest.param({}, {"needed_gpus": None}, {}, "would need more GPUs", id="no number of GPUs suffices"),
        pytest.param({}, {"needed_gpus": 1}, {}, "", id="fewer GPUs"),
        pytest.param({}, {"needed_gpus": 1}, {"met": True}, "", id="fewer GPUs while objectives are met"),
        pytest.param(
            {}, {"needed_gpus": 1, "surely_enough": False}, {"met": True}, "may not serve", id="perhaps too few"
        ),
        pytest.param({"needed_gpus": 3}, {"needed_gpus": 2}, {"met": True}, "", id="fewer than are to come"),
        pytest.param({"needed_gpus": 3}, {"needed_gpus": 2}, {"saving": False}, "", id="those of now will do"),
        pytest.param(
            {}, {"needed_gpus": 1}, {"met": True, "saving": False}, "saveGpus is off", id="the user wants none then"
        ),
        pytest.param({}, {"needed_gpus": 1}, {"saving": False}, "", id="it is not all that the change is for"),
        pytest.param(SHORT, {"needed_gpus": 1, "missing": 0.3}, {}, "a replica would serve", id="fewer of too few"),
        pytest.param(
            {}, {"capacity": 9.0}, {"met": True}, "as many GPUs", id="a larger capacity alone is worth no restart"
        ),
        pytest.param({}, {"capacity": 9.0}, {"fixed": True}, "", id="but is all there is where replicas are fixed"),
        pytest.param({}, {"capacity": 5.4}, {"fixed": True}, "a replica would serve 5.40", id="though not noise"),
        pytest.param(
            {}, {"capacity": 9.0, "gpus": 4}, {"fixed": True}, "the same GPUs as more", id="nor by twice the GPUs"
        ),
        pytest.param(SHORT, {"missing": 0.0}, {"met": True}, "as many GPUs", id="a forecast misses what is met"),
        pytest.param({"capacity": None, "missing": None}, {}, {}, "", id="not known: for the verdict to find"),
        pytest.param(
            {}, {"capacity": None}, {"met": True}, "not known", id="not known, and nothing is missed: not worth a look"
        ),
    ],
)  # fmt: skip
def test_what_is_worth_a_change(
    before: dict[str, float | None], after: dict[str, float | None], given_: dict[str, bool], says: str
) -> None:
    asked = {"met": False, "saving": True, "fixed": False, **given_}
    why = not_worth(effects(**before), effects(**after), targets=targets(), **asked)
    assert (why == "") if says == "" else (says in why)


OUTLOOKS = st.builds(
    lambda missing, needed_gpus, capacity: effects(missing=missing, needed_gpus=needed_gpus, capacity=capacity),
    st.floats(0, 1),
    st.integers(1, 64),
    st.floats(0, 1000),
)


@given(OUTLOOKS, st.floats(0.11, 0.9), st.integers(0, 8), st.floats(0, 100))
def test_of_two_forecasts_the_one_that_is_worse_in_everything_never_wins(
    good: Outlook, missing: float, gpus: int, capacity: float
) -> None:
    assert good.missing is not None
    assert good.needed_gpus is not None
    assert good.capacity is not None
    bad = replace(
        good,
        missing=good.missing + missing,
        needed_gpus=good.needed_gpus + gpus,
        capacity=max(0.0, good.capacity - capacity),
    )
    assert order(good) < order(bad)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param({"needed_gpus": 8}, {"missing": 0.3, "needed_gpus": 1}, id="objectives before GPUs"),
        pytest.param({"needed_gpus": 1, "capacity": 4.0}, {"capacity": 9.0}, id="fewer GPUs before a larger capacity"),
        pytest.param({"missing": 0.02, "needed_gpus": 1}, {"missing": 0.0}, id="a few requests are noise"),
        pytest.param({"capacity": 9.0}, {}, id="then the larger capacity"),
        pytest.param({"missing": 0.9}, {"missing": None}, id="what is known before what is not"),
    ],
)  # fmt: skip
def test_the_order_of_forecasts(better: dict[str, float | None], worse: dict[str, float | None]) -> None:
    assert order(effects(**better)) < order(effects(**worse))


def test_a_change_that_heals_is_judged_by_what_it_heals_where_it_saves_nothing() -> None:
    found = plan(situation(FULL, knobs=TP2, tuning=FP8, platform=QWEN_32B)).proposal
    assert found is not None
    assert (found.knob, found.target) == (Knob.KV_CACHE_DTYPE, ChangeTarget.TTFT)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param({}, True, id="half of the way"),
        pytest.param({"tpot": 0.0044}, False, id="no shorter than noise"),
        pytest.param({"tpot": None}, False, id="not known"),
        pytest.param({"capacity": 2.0}, False, id="some are in time with it: that is judged"),
        pytest.param({"capacity": None}, False, id="whether any are is not known"),
        pytest.param({"gpus": 1}, False, id="on no more GPUs"),
    ],
)
def test_a_step_towards_what_one_step_does_not_reach(after: dict[str, float | None], expected: bool) -> None:
    """TPOT may be 1 ms and is 4.5 with one GPU, so that no sequence is in time: two GPUs are the way to four."""
    before = effects(capacity=0.0, tpot=0.0045, gpus=1)
    assert comes_closer(before, effects(**{"capacity": 0.0, "tpot": 0.0025, "gpus": 2, **after})) is expected
