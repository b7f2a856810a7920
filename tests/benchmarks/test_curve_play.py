"""Points played on the simulator against closed forms, and profiles against the laws they were made of."""

from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.laws import Mix, Planted
from tests.benchmarks.measured import curve, write

from benchmarks.measured_curves.groups import set_ups
from benchmarks.measured_curves.play import Lengths, play_closed, play_open
from benchmarks.measured_curves.profile_fit import families, profile_of
from benchmarks.measured_curves.read import read_curves
from benchmarks.measured_curves.step_sample import steady_sample
from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.profiles import profile_document, profile_text
from vllm_autotuner.simulation.step_duration import StepLaw, step_law

PLANTED = Planted()
LAW = StepLaw(
    base=PLANTED.base,
    per_sequence=PLANTED.per_sequence,
    per_held_token=PLANTED.per_held_token,
    per_prefill_token=PLANTED.per_prefill_token,
)
MIXES: tuple[Mix, ...] = ((400, 300), (2500, 250), (2500, 900))


def engine(*, seats: int = 256, blocks: int = 60_000) -> EngineConfig:
    return EngineConfig(max_num_seqs=seats, max_model_len=8192, num_gpu_blocks=blocks, law=LAW)


@pytest.mark.parametrize("clients", [1, 3, 8, 24])
@pytest.mark.parametrize("mix", MIXES[:2], ids=lambda mix: f"{mix[0]}x{mix[1]}")
def test_a_closed_loop_settles_where_the_law_says(clients: int, mix: Mix) -> None:
    lengths = Lengths(prompt=mix[0], output=mix[1], shortest=1.0)
    played = play_closed(engine(), clients=clients, lengths=lengths, seed=1)
    steady = PLANTED.at(steady_sample(batch=clients, prompt_tokens=mix[0], output_tokens=mix[1]))
    assert played.tpot == pytest.approx(steady, rel=0.002)
    # A prompt waits for the end of a step, then it is computed in one.
    assert 0.9 * steady < played.ttft - mix[0] * LAW.per_prefill_token < 2.1 * steady


def test_clients_beyond_max_num_seqs_wait_and_the_batch_stays() -> None:
    lengths = Lengths(prompt=400, output=300, shortest=1.0)
    full = play_closed(engine(seats=8), clients=8, lengths=lengths, seed=1)
    over = play_closed(engine(seats=8), clients=24, lengths=lengths, seed=1)
    assert over.tpot == pytest.approx(full.tpot, rel=0.05)
    assert over.ttft > 300 * full.tpot


def test_drawn_lengths_start_in_step_and_are_all_counted() -> None:
    lengths = Lengths(prompt=1000, output=200, shortest=0.5)
    played = play_closed(engine(), clients=6, lengths=lengths, seed=1)
    assert played.requests == 60
    steady = PLANTED.at(steady_sample(batch=6, prompt_tokens=750, output_tokens=150))
    assert played.tpot == pytest.approx(steady, rel=0.1)
    assert played == play_closed(engine(), clients=6, lengths=lengths, seed=1)
    assert played != play_closed(engine(), clients=6, lengths=lengths, seed=2)


def test_sequences_that_grow_in_step_fill_a_pool_that_holds_them_on_average() -> None:
    # 10 * (200 + 1000) tokens at the end of each round, 7,000 on average; the pool holds 9,600.
    small = engine(blocks=601)
    in_step = play_closed(small, clients=10, lengths=Lengths(prompt=200, output=1000, shortest=0.99), seed=1)
    spread = play_closed(small, clients=10, lengths=Lengths(prompt=200, output=1000, shortest=1.0), seed=1)
    assert in_step.preemptions > 0
    assert spread.preemptions == 0


def test_an_open_loop_runs_what_arrives() -> None:
    lengths = Lengths(prompt=400, output=100, shortest=1.0)
    played = play_open(engine(), rate=2.0, lengths=lengths, seed=1)
    # Little's law: 2 per second, each 100 steps long.
    batch = 2.0 * 100 * played.tpot
    assert played.tpot == pytest.approx(
        PLANTED.at(steady_sample(batch=batch + 1, prompt_tokens=400, output_tokens=100)), rel=0.05
    )


def folder_of(folder: Path, laws: dict[int, Planted], **changes: Any) -> Path:
    for size, planted in laws.items():
        for mix in MIXES:
            write(folder, f"{size}-{mix[0]}x{mix[1]}.csv", curve(planted, mix, tp=size, **changes))
    return folder


def test_a_profile_gives_each_law_back_at_its_tensor_parallel_size(tmp_path: Path) -> None:
    # Unknown model and GPU: the profile rests on the curves alone.
    one = Planted(base=0.030, per_sequence=30e-6, per_held_token=80e-9, per_prefill_token=120e-6)
    two = Planted(base=0.019, per_sequence=30e-6, per_held_token=40e-9, per_prefill_token=66e-6)
    (family,) = families(set_ups(read_curves(folder_of(tmp_path, {1: one, 2: two}))))
    document = profile_of(family)
    assert (document.name, document.tensor_parallel_sizes) == ("unheard-20b-foo-9000", (1, 2))
    for size, planted in ((1, one), (2, two)):
        law = step_law(document.profile.step, tensor_parallel_size=size, kv_heads=document.profile.kv_heads)
        assert law.base == pytest.approx(planted.base, rel=0.03)
        for mix in MIXES:
            sample = steady_sample(batch=20, prompt_tokens=mix[0], output_tokens=mix[1])
            seconds = law.seconds(
                batch=20, held_tokens=round(sample.held_tokens), prefill_tokens=round(sample.prefill_tokens)
            )
            assert seconds == pytest.approx(planted.at(sample), rel=0.05)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("base", [0.002, 0.05], ids=["faster than its weights can be read", "slower"])
def test_one_size_is_given_back_whatever_the_weights_say(size: int, base: float, tmp_path: Path) -> None:
    planted = Planted(base=base)
    folder_of(tmp_path, {size: planted}, model="Qwen/Qwen2.5-7B-Instruct", gpu="NVIDIA-L40S")
    (family,) = families(set_ups(read_curves(tmp_path)))
    law = step_law(profile_of(family).profile.step, tensor_parallel_size=size, kv_heads=4)
    assert law.base == pytest.approx(planted.base, rel=0.03)


@pytest.mark.parametrize(
    "bases", [(0.02, 0.03), (0.02, 0.005)], ids=["slower with more GPUs", "more than twice as fast"]
)
def test_two_sizes_that_no_split_explains_are_met_half_way(bases: tuple[float, float], tmp_path: Path) -> None:
    folder_of(tmp_path, {1: Planted(base=bases[0]), 2: Planted(base=bases[1])})
    (family,) = families(set_ups(read_curves(tmp_path)))
    for size, base in zip((1, 2), bases, strict=True):
        law = step_law(profile_of(family).profile.step, tensor_parallel_size=size, kv_heads=8)
        assert base / 2 < law.base < base * 2


def test_a_profile_of_a_known_model_carries_its_memory(tmp_path: Path) -> None:
    folder_of(tmp_path, {2: PLANTED}, model="Qwen/Qwen2.5-14B-Instruct", gpu="A10G", weight_dtype="fp8")
    (family,) = families(set_ups(read_curves(tmp_path)))
    document = profile_of(family)
    profile = document.profile
    assert document.name == "qwen2.5-14b-a10g"
    assert profile.memory is not None
    assert profile.memory.total_gib == 22
    # 13.2B inner weights in 8 bit, 1.56B of the vocabulary in 16 bit.
    assert profile.memory.weights_gib == pytest.approx((13.21e9 + 2 * 1.557e9) / 2**30, rel=0.01)
    assert (profile.attention_heads, profile.kv_heads, profile.max_num_seqs) == (40, 8, 256)
    assert profile.kv_bytes_per_token == 196_608
    path = tmp_path / "qwen2.5-14b-a10g.json"
    path.write_text(profile_text(document))
    assert profile_document(str(path)) == document


def test_an_unknown_pool_comes_from_where_the_curves_saturate(tmp_path: Path) -> None:
    write(tmp_path, "full.csv", curve(PLANTED, (2500, 900), loads=(2, 4, 8, 16, 32), full_at=12))
    write(tmp_path, "light.csv", curve(PLANTED, (400, 300)))
    (family,) = families(set_ups(read_curves(tmp_path)))
    document = profile_of(family)
    tokens = document.profile.gpu_blocks * document.profile.block_size
    # 8 sequences of 2,950 live tokens fit, 16 do not.
    assert 8 * 2950 < tokens < 16 * 2950
    assert "unknown geometry" in document.provenance["pool"]


def test_a_computed_pool_that_could_not_hold_what_ran_is_dropped(tmp_path: Path) -> None:
    # 14.8B weights of 16 bit and no word of any other type: they do not fit a GPU of 22 GiB, and yet it ran.
    folder_of(tmp_path, {1: PLANTED}, model="Qwen/Qwen2.5-14B-Instruct", gpu="A10G")
    (family,) = families(set_ups(read_curves(tmp_path)))
    document = profile_of(family)
    assert document.profile.memory is None
    assert document.provenance["pool"].startswith("a computed pool of 0 tokens at TP 1 cannot hold what ran at 32")
    # The most that ran without a queue: 32 sequences of 2,950 live tokens; nothing saturated, so twice that.
    tokens = document.profile.gpu_blocks * document.profile.block_size
    assert tokens == pytest.approx(2 * 32 * 2950, rel=0.05)


def test_prompts_faster_than_the_gpu_can_compute_are_no_profile(tmp_path: Path) -> None:
    planted = Planted(base=0.007, per_held_token=54e-9, per_prefill_token=1e-6)
    folder_of(tmp_path, {1: planted}, model="meta-llama/Llama-3.1-8B-Instruct", gpu="H100")
    (family,) = families(set_ups(read_curves(tmp_path)))
    assert family.impossible is not None
    assert "prefix cache" in family.impossible
