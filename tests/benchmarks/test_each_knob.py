"""Each knob moves in the loop because the capacity model says so: the operator's own code against simulated engines.

Small and the same every time; the table of all scenarios is `benchmarks/closed_loop.py`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.closedloop.autotuner import Autotuner, Ended
from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.scenario import Hardware, Objectives, Scenario
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from benchmarks.closedloop.trial import CaseOf
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import Outcome, parse_status
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.lengths import Uniform
from vllm_autotuner.simulation.traffic import Content, Mix

LONGEST = 7200.0
"""Seconds of the run after which nothing more is waited for."""
Until = Callable[[Autotuner, SimulatedCluster], bool]


def drawn(name: str, *, seed: int = 1, profile: str | None = None) -> Scenario:
    hardware = hardware_of(None if profile is None else [profile])
    return CaseOf(scenario=name, seed=seed, hardware=hardware, quick=True, noise=False).drawn()


def at_degree(degree: int, *, length: int) -> Hardware:
    return replace(hardware_of(["qwen3-32b-h100"])[0], tensor_parallel_size=degree, max_model_len=length)


def tuned(scenario: Scenario, until: Until) -> tuple[Autotuner, SimulatedCluster]:
    """Play until something has happened."""
    owner = Owner(scenario)
    product = Autotuner(scenario, owner, Scraper())

    def over(deployment: SimulatedCluster) -> bool:
        return deployment.now > LONGEST or until(product, deployment)

    return product, asyncio.run(play(scenario, product, owner=owner, given_up=over)).cluster


def kept(product: Autotuner, knob: Knob) -> list[Ended]:
    return [one for one in product.ended if one.knob == knob.value and one.outcome is Outcome.SUCCEEDED]


def has_kept(knob: Knob) -> Until:
    return lambda product, deployment: bool(kept(product, knob))


def replicas_of(deployment: SimulatedCluster) -> list[int]:
    return [count for _, count in deployment.scalings]


def test_a_higher_max_num_seqs_takes_the_place_of_a_replica_that_came_as_a_bridge() -> None:
    scenario = drawn("cap-bound")

    def given_back(product: Autotuner, deployment: SimulatedCluster) -> bool:
        return bool(kept(product, Knob.MAX_NUM_SEQS)) and deployment.replicas == scenario.replicas

    product, deployment = tuned(scenario, given_back)
    first = kept(product, Knob.MAX_NUM_SEQS)[0]
    assert scenario.seats is not None
    assert int(str(first.to_value)) >= 1.5 * scenario.seats
    assert "fewer GPUs are needed" in first.reason
    assert max(replicas_of(deployment)) > scenario.replicas == deployment.replicas
    effective = parse_status(product.status).effective
    assert effective is not None
    assert "carry the highest load" in effective.replicas_reason


def test_a_second_step_goes_on_within_the_cooldown_when_the_replicas_that_the_first_spared_have_gone() -> None:
    quiet = drawn("cap-bound")
    assert quiet.seats is not None
    scenario = replace(quiet, seats=quiet.seats // 2, rhythm=replace(quiet.rhythm, cooldown=None))

    def given_back(product: Autotuner, deployment: SimulatedCluster) -> bool:
        return len(kept(product, Knob.MAX_NUM_SEQS)) == 2 and deployment.replicas == scenario.replicas

    product, deployment = tuned(scenario, given_back)
    first, second = kept(product, Knob.MAX_NUM_SEQS)
    most = max(replicas_of(deployment))
    then = [count for at, count in deployment.scalings if at <= second.began][-1]
    assert most > then > deployment.replicas == scenario.replicas
    assert first.to_value == second.from_value


def test_a_lower_max_num_seqs_keeps_tokens_in_time_where_there_are_too_few_gpus() -> None:
    scenario = replace(drawn("past-knee-50ms", seed=3), scales=False)
    product, deployment = tuned(scenario, has_kept(Knob.MAX_NUM_SEQS))
    change = kept(product, Knob.MAX_NUM_SEQS)[0]
    assert int(str(change.to_value)) < 1024
    assert change.reason.startswith("TPOT improved")
    assert deployment.scalings == deployment.scalings[:1], "no replica came"


@pytest.mark.parametrize(
    ("name", "knob", "value"),
    [
        ("kv-fp8", Knob.KV_CACHE_DTYPE, "fp8"),
        ("tp-too-high", Knob.TENSOR_PARALLEL_SIZE, "1"),
        ("tp-starves", Knob.TENSOR_PARALLEL_SIZE, "2"),
    ],
)
def test_a_setting_with_which_fewer_gpus_do_is_kept(name: str, knob: Knob, value: str) -> None:
    product, _ = tuned(drawn(name), has_kept(knob))
    change = kept(product, knob)[0]
    assert change.to_value == value
    assert "fewer GPUs are needed" in change.reason


def test_slots_that_are_never_used_give_their_memory_to_the_kv_cache() -> None:
    scenario = replace(drawn("kv-fp8", profile="qwen3-32b-h100"), kv_cache_dtypes=("auto",))

    def given_back(product: Autotuner, deployment: SimulatedCluster) -> bool:
        return bool(kept(product, Knob.MAX_NUM_SEQS)) and deployment.replicas < max(replicas_of(deployment))

    product, deployment = tuned(scenario, given_back)
    assert int(str(kept(product, Knob.MAX_NUM_SEQS)[0].to_value)) < 512
    pools = [pod.virtual.config.num_gpu_blocks for pod in deployment.pods if pod.virtual is not None]
    assert max(pools) > 1.5 * min(pools), "1024 slots take more than half of what this model leaves"
    assert deployment.replicas < max(replicas_of(deployment))


def test_an_engine_that_lacks_memory_for_its_longest_request_starts_with_a_shorter_limit() -> None:
    hardware = at_degree(1, length=40_960)
    scenario = replace(drawn("kv-bound", profile="qwen3-32b-h100"), hardware=hardware, length_bounds=(2048, 40_960))
    product, deployment = tuned(scenario, has_kept(Knob.MAX_MODEL_LEN))
    change = kept(product, Knob.MAX_MODEL_LEN)[0]
    assert 2048 <= int(str(change.to_value)) < 40_960
    assert change.reason == "the engine starts and serves"
    assert deployment.ready


def test_a_smaller_parallel_size_takes_a_shorter_limit_and_fewer_slots_with_it() -> None:
    """One GPU of this model holds no request of the present limit, and 1024 slots would take half of what it has."""
    quiet = drawn("tp-too-high", profile="qwen3-32b-h100")
    scenario = replace(
        quiet,
        hardware=at_degree(2, length=40_960),
        replicas=1,
        tensor_parallel_sizes=(1, 2),
        length_bounds=(2048, 40_960),
        content=Content(Mix(prompt=Uniform(100, 400), output=Uniform(50, 150))),
        rate=RateCurve.steps([(0.0, 1.5), (quiet.duration, 0.0)]),
        objectives=Objectives(ttft=2.0, tpot=0.08),
    )
    product, _ = tuned(scenario, has_kept(Knob.TENSOR_PARALLEL_SIZE))
    assert kept(product, Knob.TENSOR_PARALLEL_SIZE)[0].to_value == "1"
    effective = parse_status(product.status).effective
    assert effective is not None
    assert effective.max_model_len is not None
    assert 2048 <= effective.max_model_len < 40_960
    assert effective.max_num_seqs is not None
    assert effective.max_num_seqs < 512


def test_replicas_come_with_the_load_where_no_setting_may_change() -> None:
    scenario = replace(drawn("step-fivefold"), tunes=False)
    product, deployment = tuned(scenario, lambda product, deployment: len(replicas_of(deployment)) > 2)
    counts = replicas_of(deployment)
    assert max(counts) > counts[0]
    assert not product.ended


def test_replicas_go_where_the_others_carry_the_load_by_the_low_end_of_their_capacity() -> None:
    scenario = replace(drawn("over-provisioned"), tunes=False)
    product, deployment = tuned(scenario, lambda product, deployment: deployment.replicas < scenario.replicas)
    assert deployment.replicas == scenario.replicas - 1
    effective = parse_status(product.status).effective
    assert effective is not None
    assert "carry the highest load" in effective.replicas_reason
    assert not product.ended


def test_a_service_without_requests_gives_its_replicas_back_and_gets_them_with_the_load() -> None:
    """Half an hour of silence: no window has tokens, and nothing of it may be divided by or averaged."""
    busy = drawn("over-provisioned", seed=2)
    load, back = busy.rate.rate(0.0), 3000.0
    rate = RateCurve.steps([(0.0, load), (600.0, 0.0), (back, load), (busy.duration, 0.0)])

    def served_again(product: Autotuner, deployment: SimulatedCluster) -> bool:
        return deployment.now > back and deployment.replicas > 1

    _, deployment = tuned(replace(busy, rate=rate, steady_from=None), served_again)
    silent = [count for at, count in deployment.scalings if 600.0 < at < back]
    assert silent[-1] == 1
    assert deployment.replicas > 1
    assert deployment.now < back + 600.0
