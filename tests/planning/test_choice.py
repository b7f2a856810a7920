"""What is chosen among candidates, what it is predicted to do, and why the others lost."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.builders import engine, latency, observation, targets
from tests.planning.situations import QWEN_32B, lengths, line, scaling, served, situation
from tests.planning.test_ranking import EFFECTS, TARGETS

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import AllowedStrings, Profile, Tuning
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.engine.startup_log import StartupFailure, StartupReason
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.pod_starts import PodStart, PodsView
from vllm_autotuner.planning.demand import demand_of
from vllm_autotuner.planning.forecast import Outlook, current_setting, outlook, setting_with
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.ranking import Effect, clearly_better
from vllm_autotuner.planning.worth import START_UP, not_worth, pays_back

FULL = served(
    observation(engine(running=60.0, waiting=40.0, kv=0.98), ttft=latency(8.0)),
    steps=line(8, 16, 32, 60, base=0.014, per_sequence=0.0003),
)
TP2 = EngineKnobs(max_num_seqs=256, max_model_len=16_384, tensor_parallel_size=2)
FP8 = Tuning(kv_cache_dtype=AllowedStrings(allowed=("auto", "fp8")))


def test_what_adds_no_gpus_comes_first_and_the_runner_up_says_why_it_lost() -> None:
    found = plan(situation(FULL, knobs=TP2, tuning=FP8, platform=QWEN_32B, scale=scaling()))
    knobs = [(each.proposal.knob, each.lost) for each in found.considered]
    assert knobs[0] == (Knob.KV_CACHE_DTYPE, "")
    assert knobs[1] == (Knob.REPLICAS, "it adds GPUs; kvCacheDtype fp8 adds none")


def test_what_may_be_applied_comes_before_what_may_only_be_recommended() -> None:
    found = plan(situation(FULL, knobs=TP2, platform=QWEN_32B, scale=scaling()))
    assert [each.proposal.knob for each in found.considered][:2] == [Knob.REPLICAS, Knob.KV_CACHE_DTYPE]
    assert "recommended only: spec.tuning.kvCacheDtype does not list fp8" in found.considered[1].lost


def test_the_predicted_effects_of_fp8() -> None:
    """Twice the tokens; 55 sequences become 110, of which 100 are there: nothing waits any more."""
    found = plan(situation(FULL, knobs=TP2, tuning=FP8, platform=QWEN_32B)).considered[0]
    now, then = (
        {each.name: value for each, value in zip(found.proposal.predicted, side, strict=True)}
        for side in zip(*((each.current, each.predicted) for each in found.proposal.predicted), strict=True)
    )
    held = "sequences that the KV cache holds"
    assert (now["KV cache"], now[held], now["goodput"]) == (282_496, 55, 0.0)
    assert then["KV cache"] == pytest.approx(564_992)
    assert then[held] == pytest.approx(110)
    assert now["TPOT"] == pytest.approx(0.014 + 0.0003 * 55)
    assert then["TPOT"] == pytest.approx(0.014 + 0.0003 * 100)
    assert now["TTFT"] == pytest.approx(8.0, rel=0.02)
    assert then["TTFT"] is not None
    assert then["TTFT"] < 0.5


def test_start_up_failures_recommend_the_length_that_fits() -> None:
    failure = StartupFailure(reason=StartupReason.INSUFFICIENT_KV_CACHE, message="", suggested_max_model_len=17_920)
    pods = PodsView(pods=(PodStart(name="chat-0", ready_for=None, failure=failure),))
    seen = replace(FULL, engines=(), pods=pods)
    found = plan(situation(seen, primary=DiagnosisClass.STARTUP_FAILURE, knobs=EngineKnobs(max_model_len=32_000)))
    assert found.proposal is not None
    assert (found.proposal.knob, found.proposal.value) == (Knob.MAX_MODEL_LEN, 17_920)
    assert "write the value into the spec" in found.proposal.recommend_only


def test_more_demand_is_never_served_faster() -> None:
    """The forecast itself: with every request more, tokens and first tokens come no sooner."""
    known = []
    for waiting in (0.0, 20.0, 40.0, 200.0):
        seen = served(replace(FULL, engines=(engine(running=60.0, waiting=waiting, kv=0.98),)))
        given_ = situation(seen, primary=DiagnosisClass.KV_CACHE_SATURATED, knobs=TP2, platform=QWEN_32B)
        demand = demand_of(given_)
        now = current_setting(given_, demand)
        more = setting_with(now, Knob.REPLICAS, 4, situation=given_, demand=demand)
        known.append(outlook(more, now=now, situation=given_, demand=demand).tpot)
    tpots = [each for each in known if each is not None]
    assert tpots == sorted(tpots)


@pytest.mark.parametrize(
    ("knob", "value", "waits"),
    [
        pytest.param(Knob.MAX_NUM_SEQS, 128, 0.0, id="more seats"),
        pytest.param(Knob.MAX_NUM_SEQS, 60, 0.0, id="as many as run"),
        pytest.param(Knob.MAX_NUM_SEQS, 30, 30 * 256 * 0.023 / 30, id="half of them wait for the other half"),
        pytest.param(Knob.REPLICAS, 2, 0.0, id="more replicas"),
    ],
)
def test_where_nothing_waits_too_few_seats_make_a_queue(knob: Knob, value: int, waits: float) -> None:
    steps = line(8, 16, 32, 60, base=0.014, per_sequence=0.0003)
    calm = served(observation(engine(running=60.0, kv=0.4), ttft=latency(0.4)), steps=steps, output=256.0)
    given_ = situation(calm, primary=DiagnosisClass.PAST_TPOT_KNEE, knobs=EngineKnobs(max_num_seqs=64))
    demand = demand_of(given_)
    now = current_setting(given_, demand)
    then = setting_with(now, knob, value, situation=given_, demand=demand)
    assert (demand.queued, demand.ttft is not None) == (False, True)
    ttft = outlook(then, now=now, situation=given_, demand=demand).ttft
    assert ttft == pytest.approx((demand.ttft or 0.0) + waits, rel=1e-6)


def test_where_a_queue_ends_long_prompts_stay_long() -> None:
    """All have waited alike; what is left at the 95th percentile is the prefill of a prompt four times the mean."""
    steps = line(8, 16, 32, 60, base=0.014, per_sequence=0.0003)
    seen = served(observation(engine(running=60.0, waiting=40.0, kv=0.3), ttft=latency(8.0)), steps=steps, prefill=0.1)
    seen = replace(seen, prompt_length=lengths(4096.0))
    given_ = situation(seen, primary=DiagnosisClass.CONCURRENCY_CAPPED, knobs=EngineKnobs(max_num_seqs=60))
    demand = demand_of(given_)
    now = current_setting(given_, demand)
    wider = setting_with(now, Knob.MAX_NUM_SEQS, 120, situation=given_, demand=demand)
    assert demand.queued
    assert demand.prefill_tail == pytest.approx(0.4, rel=0.05)
    assert outlook(wider, now=now, situation=given_, demand=demand).ttft == pytest.approx(demand.prefill_tail)


def effects(**changes: float | int | None) -> Outlook:
    given_: dict[str, float | int | None] = {
        "tpot": 0.04, "ttft": 1.0, "tokens_per_second": 1000.0, "goodput": 1000.0, "held": 50.0, "pool": 1e5,
        "gpus": 2, "error": 0.0,
    }  # fmt: skip
    return Outlook(**{**given_, **changes})  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("before", "after", "target", "says"),
    [
        pytest.param({"ttft": 4.0}, {"ttft": 3.0}, ChangeTarget.TTFT, "", id="a quarter less"),
        pytest.param({"ttft": 4.0}, {"ttft": 3.7}, ChangeTarget.TTFT, "gain is 7% (noise 10%)", id="noise"),
        pytest.param({"ttft": 2.05}, {"ttft": 1.95}, ChangeTarget.TTFT, "", id="into the objective"),
        pytest.param(
            {"tpot": 0.08, "error": 0.2}, {"tpot": 0.06, "error": 0.2}, ChangeTarget.TPOT, "(noise 40%)",
            id="less than two deviations of the fit",
        ),
        pytest.param({}, {"tpot": 0.06, "ttft": 0.1}, ChangeTarget.TTFT, "over the objective", id="at TPOT's cost"),
        pytest.param({"ttft": None}, {}, ChangeTarget.TTFT, "", id="not known: for the verdict to find"),
        pytest.param({}, {"tokens_per_second": 1200.0}, ChangeTarget.THROUGHPUT, "", id="more tokens"),
        pytest.param({}, {"tokens_per_second": 900.0}, ChangeTarget.THROUGHPUT, "noise", id="fewer tokens"),
    ],
)  # fmt: skip
def test_worth(
    before: dict[str, float | None], after: dict[str, float | None], target: ChangeTarget, says: str
) -> None:
    why = not_worth(effects(**before), effects(**after), target=target, targets=targets())
    assert (why == "") if says == "" else (says in why)


@pytest.mark.parametrize(
    ("after", "restarts", "worth"),
    [
        pytest.param(0.0525, False, True, id="a replica that takes away more than half of what is missed"),
        pytest.param(0.0525, True, False, id="5 % pay for no restart"),
        pytest.param(0.0535, False, False, id="a replica that takes away less than half"),
    ],
)
def test_a_replica_that_takes_away_most_of_a_miss_is_worth_it(after: float, restarts: bool, worth: bool) -> None:
    """Tokens at 55 ms where 50 ms are wanted: noise of the latency, and yet a quarter of all requests were late."""
    effect = {"before": effects(tpot=0.055), "after": effects(tpot=after)}
    why = not_worth(**effect, target=ChangeTarget.TPOT, targets=targets(), restarts=restarts)
    assert (why == "") is worth, why


def test_a_gain_pays_for_its_restart_within_a_week() -> None:
    assert pays_back(NOISE, disruption=START_UP)
    assert not pays_back(NOISE, disruption=10 * 3600.0)
    assert not pays_back(0.0, disruption=1.0)


@given(EFFECTS, EFFECTS, TARGETS)
def test_of_two_at_most_one_is_clearly_better(one: Effect, other: Effect, wanted: Targets) -> None:
    assert not (clearly_better(one, other, targets=wanted) and clearly_better(other, one, targets=wanted))


@given(EFFECTS, TARGETS, st.floats(0.3, 3), st.integers(0, 3))
def test_better_in_everything_is_clearly_better_in_every_profile(
    effect: Effect, wanted: Targets, share: float, gpus: int
) -> None:
    assume(effect.tokens_per_second > 1e-6)
    worse = Effect(
        ttft=effect.ttft * (1 + share),
        tpot=effect.tpot * (1 + share),
        tokens_per_second=effect.tokens_per_second / (1 + share),
        gpus=effect.gpus + gpus,
    )
    for profile in Profile:
        against = replace(wanted, profile=profile)
        assert clearly_better(effect, worse, targets=against)
        assert not clearly_better(worse, effect, targets=against)
