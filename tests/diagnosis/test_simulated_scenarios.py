"""Simulated windows whose limit is known by construction: that it is true of them, and that the diagnosis names it.

The whole matrix, with macro-F1, is `benchmarks/confusion.py`; here stands what must not get worse.
"""

import asyncio
from collections.abc import Sequence
from functools import cache

import pytest

from benchmarks.windows.command import FINE, NO_CAPACITY, main
from benchmarks.windows.draws import KINDS, Scene, draw, requests_of
from benchmarks.windows.matrix import Matrix
from benchmarks.windows.naming import EPOCH, named_windows, scraped
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.questions import Samples

SEED = 0
NOT_ALWAYS = {
    "prefill-bound": "prompts in every step make tokens late, too, and PastTPOTKnee comes first",
    "head of line": "beside a huge prompt tokens are late as well",
    "runaway": "at the longest outputs fewer than 5 requests end in a window",
}
"""Kinds that are not named right in every window of every seed, and why."""
ALWAYS = [kind for kind in KINDS if kind not in NOT_ALWAYS]


@cache
def windows(kind: str) -> tuple[str, Sequence[DiagnosisClass]]:
    return asyncio.run(named_windows(draw(kind, seed=SEED), seed=SEED))


def levels(scene: Scene, name: str) -> list[float]:
    """The scraped values of a metric in the scored part, all pods, all labels."""
    recording = scraped(scene, seed=SEED)
    asked = recording.ask(
        Samples(names=(name,), window=int(scene.seconds - scene.scored_from)), at=EPOCH + scene.seconds
    )
    return [value for series in asyncio.run(asked) for value in series.values]


def growth(scene: Scene, name: str) -> float:
    values = levels(scene, name)
    return max(values) - min(values)


@pytest.mark.parametrize("kind", ALWAYS)
def test_every_window_is_named_for_what_limits_it(kind: str) -> None:
    truth, named = windows(kind)
    assert len(named) >= 10
    assert {str(one) for one in named} == {truth}


@pytest.mark.parametrize("kind", NOT_ALWAYS)
def test_where_the_name_is_not_always_right_it_never_asks_for_replicas_alone(kind: str) -> None:
    _, named = windows(kind)
    assert len(named) >= 10
    assert DiagnosisClass.OVERLOADED not in named


def test_no_kind_is_named_by_a_class_that_does_not_exist() -> None:
    assert {draw(kind, seed=SEED).truth for kind in KINDS} <= {str(one) for one in DiagnosisClass}
    assert {draw(kind, seed=SEED).truth for kind in KINDS} >= (NO_CAPACITY | FINE)


def test_a_cap_binds_because_slots_are_taken_and_blocks_are_free() -> None:
    scene = draw("capped", seed=SEED)
    assert max(levels(scene, "vllm:num_requests_running")) == scene.config.max_num_seqs
    assert min(levels(scene, "vllm:num_requests_waiting")) > 0
    assert max(levels(scene, "vllm:kv_cache_usage_perc")) < 0.6


@pytest.mark.parametrize("kind", ["KV-bound", "thrash"])
def test_blocks_bind_because_the_pool_is_full_and_slots_are_free(kind: str) -> None:
    scene = draw(kind, seed=SEED)
    assert max(levels(scene, "vllm:num_requests_running")) < scene.config.max_num_seqs / 2
    assert min(levels(scene, "vllm:num_requests_waiting")) > 0
    assert max(levels(scene, "vllm:kv_cache_usage_perc")) > 0.9


@pytest.mark.parametrize(("kind", "thrashes"), [("KV-bound", False), ("thrash", True)])
def test_a_thrash_is_told_from_a_full_pool_by_how_many_are_evicted(kind: str, thrashes: bool) -> None:
    scene = draw(kind, seed=SEED)
    evicted = growth(scene, "vllm:num_preemptions_total") / growth(scene, "vllm:request_generation_tokens_count")
    assert (evicted > 0.02) is thrashes
    assert (evicted < 0.005) is not thrashes
    assert windows(kind)[0] == ("PreemptionThrash" if thrashes else "KVCacheSaturated")


def test_prompts_bind_because_neither_slots_nor_blocks_do() -> None:
    scene = draw("prefill-bound", seed=SEED)
    assert min(levels(scene, "vllm:num_requests_waiting")) > 0
    assert max(levels(scene, "vllm:num_requests_running")) < scene.config.max_num_seqs / 2
    assert max(levels(scene, "vllm:kv_cache_usage_perc")) < 0.8
    computing = growth(scene, "vllm:prompt_tokens_total") * scene.config.law.per_prefill_token
    assert computing > 0.85 * (scene.seconds - scene.scored_from)


def test_past_the_knee_tokens_are_late_and_nothing_waits() -> None:
    scene = draw("past the knee", seed=SEED)
    assert scene.tpot is not None
    seconds = growth(scene, "vllm:inter_token_latency_seconds_sum")
    assert seconds / growth(scene, "vllm:inter_token_latency_seconds_count") > 1.1 * scene.tpot
    assert max(levels(scene, "vllm:num_requests_waiting")) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_draws_the_same_scene_and_another_one_another(kind: str) -> None:
    first, again, other = draw(kind, seed=1), draw(kind, seed=1), draw(kind, seed=2)
    assert first == again
    assert first != other
    assert requests_of(first, pod=0, seed=1) == requests_of(again, pod=0, seed=1)
    assert all(each.arrival <= first.seconds for each in requests_of(first, pod=0, seed=1))


@pytest.mark.parametrize("kind", ["capped", "runaway", "head of line", "KV-bound"])
def test_every_request_that_is_drawn_can_run(kind: str) -> None:
    scene = draw(kind, seed=SEED)
    longest = scene.config.max_model_len
    for request in requests_of(scene, pod=0, seed=SEED):
        assert request.prompt_tokens + request.max_tokens <= longest
        assert request.max_tokens >= (request.eos_after or 1)


def test_a_matrix_counts_every_window_also_those_of_no_known_class() -> None:
    matrix = Matrix()
    matrix.count("Healthy", ["Healthy"] * 9 + ["Unclear"])
    matrix.count("Wedged", ["Wedged"] * 5 + ["Healthy"] * 5)
    assert matrix.names == ("Healthy", "Wedged", "Unclear")
    # Healthy: precision 9/14, recall 9/10, F1 0.75; Wedged: precision 1, recall 1/2, F1 2/3.
    assert matrix.score("Healthy").f1 == pytest.approx(0.75)
    assert matrix.score("Wedged").f1 == pytest.approx(2 / 3)
    assert matrix.score("Unclear").f1 == 0.0
    assert matrix.macro_f1 == pytest.approx((0.75 + 2 / 3) / 2)
    assert matrix.named_as("Healthy", truths=frozenset({"Wedged"})) == 5


def test_an_empty_matrix_has_no_score() -> None:
    with pytest.raises(ValueError, match="no window"):
        _ = Matrix().macro_f1


def test_the_command_refuses_what_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["no-such-kind"])
    assert stopped.value.code == 2
    assert "no-such-kind: unknown; there are healthy" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--seeds", "0"])


def test_the_command_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blind", "--seeds", "1"]) == 0
    assert "macro-F1 1.000" in capsys.readouterr().out
