"""Recordings against the simulated engine: the reconstruction is checked where the truth is known, then used."""

import asyncio
import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.simulation.virtual import poisson

from benchmarks.recordings.command import main
from benchmarks.recordings.compare import Level, differences, levels, longest_queue, named, ratio
from benchmarks.recordings.pace import Pace, fit_law, law_errors, pace_of
from benchmarks.recordings.play import Replayed, configuration, play
from benchmarks.recordings.read import Description, Phase, Recorded, read_recorded
from benchmarks.recordings.study import MOST_LEVEL_ERROR, PROOF, study
from benchmarks.recordings.workload import reconstruct
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.simulation.sequence import Request
from vllm_autotuner.simulation.step_duration import StepLaw

RECORDINGS = Path(__file__).parents[1] / "data" / "vllm-0.32" / "recordings"
H200 = RECORDINGS.parents[1] / "vllm-0.26-h200" / "recordings"
NAMES = ("healthy", "kv-saturation", "seats-saturation")
LAW = StepLaw(base=0.0018, per_sequence=0.0002, per_held_token=0.0, per_prefill_token=0.00004)
LIGHT = Phase(start=0.0, prompt=(50, 200), output=(50, 150))
HEAVY = Phase(start=60.0, prompt=(250, 350), output=(350, 450))
LIGHT_AGAIN = replace(LIGHT, start=120.0)
DESCRIPTION = Description(
    flags=EngineFlags(max_num_seqs=64, max_model_len=2048, num_gpu_blocks_override=40),
    phases=(LIGHT, HEAVY, LIGHT_AGAIN),
)


def load(*, seed: int) -> list[Request]:
    """Light, then more than the pool holds, then light again: 40 blocks of 128 tokens are about 8 such requests."""
    requests = []
    for phase, rate in ((LIGHT, 1.0), (HEAVY, 7.5), (LIGHT_AGAIN, 1.0)):
        drawn = poisson(rate=rate, seconds=60, prompt=phase.prompt, output=phase.output, seed=seed)
        requests += [replace(each, arrival=each.arrival + phase.start) for each in drawn]
        seed += 1
    return requests


def template(name: str = "kv-saturation") -> Recorded:
    return read_recorded(RECORDINGS / f"{name}.om.gz")[0]


def made_up(requests: list[Request]) -> Replayed:
    """A recording whose truth is known: the simulated engine under these requests."""
    shape = template()
    config = configuration(shape, flags=DESCRIPTION.flags, law=LAW)
    return play(shape, requests, config=config)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_replay_of_a_replay_is_the_same(seed: int) -> None:
    requests = load(seed=seed)
    first = made_up(requests)
    queue = longest_queue(first.recorded)
    assert queue is not None
    assert first.recorded.preemptions[-1] > 100, "otherwise this tests no preemption"
    again = made_up(list(reconstruct(first.recorded, phases=DESCRIPTION.phases, seed=7)))
    for level in (*levels(first.recorded, again.recorded), *levels(first.recorded, again.recorded, between=queue)):
        if level.quantity != "tokens per step":
            assert level.error is not None
            assert abs(level.error) < 0.07, level
    factor = ratio(first.recorded.preemptions[-1], again.recorded.preemptions[-1])
    assert factor is not None
    assert factor < 1.1


def test_what_the_counters_say_is_kept_exactly() -> None:
    requests = load(seed=3)
    recorded = made_up(requests).recorded
    found = reconstruct(recorded, phases=DESCRIPTION.phases, seed=0)
    assert len(found) == len(requests)
    came = np.array([np.count_nonzero([each.arrival <= at for each in found]) for at in recorded.times])
    assert np.array_equal(came, recorded.arrived)
    # Who came within the step under way at a scrape is in no gauge yet.
    truly = np.array([np.count_nonzero([each.arrival <= at for each in requests]) for at in recorded.times])
    assert np.all((truly - came >= 0) & (truly - came <= 2))
    assert sum(each.prompt_tokens for each in found) == sum(each.prompt_tokens for each in requests)
    assert sum(each.max_tokens for each in found) == sum(each.max_tokens for each in requests)
    assert all(50 <= each.prompt_tokens <= 350 and 50 <= each.max_tokens <= 450 for each in found)


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    recorded = template()
    first, again, other = (reconstruct(recorded, phases=DESCRIPTION.phases, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_requests_that_were_there_at_the_start_come_at_once() -> None:
    whole = made_up(load(seed=4)).recorded
    row = int(np.argmax(whole.running > 0))
    columns = ("running", "waiting", "kv_usage", "times")
    counters = ("finished", "first_tokens", "prompt_tokens", "finished_output")
    timings = ("itl_seconds", "itl_count", "prefill_seconds", "prefill_count")
    cut = replace(
        whole,
        **{name: getattr(whole, name)[row:] for name in columns},
        **{name: getattr(whole, name)[row:] - getattr(whole, name)[row] for name in (*counters, *timings)},
    )
    cut = replace(cut, times=cut.times - cut.times[0])
    found = reconstruct(cut, phases=DESCRIPTION.phases, seed=0)
    assert sum(each.arrival == 0.0 for each in found) == whole.running[row] + whole.waiting[row]
    assert len(found) == cut.arrived[-1]


def test_the_law_behind_a_recording_is_found_again() -> None:
    replayed = made_up(load(seed=5))
    lost = replayed.recomputed_per_preemption
    law = fit_law({"it": replayed.recorded}, recomputed={"it": lost})
    assert law.base == pytest.approx(LAW.base, rel=0.15)
    assert law.per_sequence == pytest.approx(LAW.per_sequence, rel=0.25)
    assert law.per_prefill_token == pytest.approx(LAW.per_prefill_token, rel=0.25)
    assert float(np.median(np.abs(law_errors(law, replayed.recorded, recomputed=lost)))) < 0.05
    pace = pace_of(replayed.recorded, law=LAW, recomputed=lost)
    assert float(np.median(pace.factors)) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    "path", [RECORDINGS / "kv-saturation.om.gz", H200 / "h200-kv.om.gz"], ids=lambda path: path.stem
)
def test_a_law_fills_the_time_of_a_queue_however_its_intervals_vary(path: Path) -> None:
    recorded, _ = read_recorded(path)
    law = fit_law({"": recorded}, recomputed={"": 0.0})
    queued = (recorded.waiting[:-1] > 0) & (recorded.waiting[1:] > 0)
    steps, tokens, prompts = (
        np.diff(column)[queued].sum() for column in (recorded.steps, recorded.generation_tokens, recorded.prompt_tokens)
    )
    told = law.base * steps + law.per_sequence * tokens + law.per_prefill_token * prompts
    assert told == pytest.approx(np.diff(recorded.times)[queued].sum(), rel=0.02)


def test_the_pace_holds_within_its_interval() -> None:
    pace = Pace(until=(2.0, 4.0), factors=(1.0, 3.0))
    stretches = {age: pace.stretch(max_num_seqs=1, age=age) for age in (0.0, 2.0, 2.1, 9.0)}
    assert stretches == {0.0: 1.0, 2.0: 1.0, 2.1: 3.0, 9.0: 3.0}
    assert [pace.next_change(age=age) for age in (0.0, 2.1)] == [2.0, None]


def test_a_description_tells_the_defaults_of_its_machine_where_the_command_line_says_nothing() -> None:
    recorded, description = read_recorded(H200 / "h200-cap.om.gz")
    config = configuration(recorded, flags=description.flags, law=LAW)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (16, 8192)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_replayed_as_it_was(name: str) -> None:
    recorded, description = read_recorded(RECORDINGS / f"{name}.om.gz")
    (proof, *_) = study({name: (recorded, description)}, seeds=[0], progress=lambda _: None)[name]
    assert proof.way.name == PROOF
    assert proof.level_error is not None
    assert proof.level_error <= MOST_LEVEL_ERROR
    assert [one for one in proof.classes[0] if not one.near_turn] == []
    assert proof.holds
    (simulated,) = proof.simulated
    assert simulated.finished[-1] == recorded.finished[-1]
    assert simulated.prompt_tokens[-1] == recorded.prompt_tokens[-1]
    assert simulated.generation_tokens[-1] == recorded.generation_tokens[-1]


@pytest.mark.parametrize(
    ("name", "proven"),
    [
        ("h200-cap", {"running", "waiting", "KV usage", "tokens per step", "in inference"}),
        ("h200-knee", {"running", "KV usage", "tokens per step", "in inference"}),
        ("h200-kv", {"running", "waiting", "KV usage", "tokens per step", "in inference"}),
        ("h200-prefill-near", {"running", "waiting", "KV usage", "tokens per step", "in inference"}),
        # When within a second requests came is not known: the two that come each second after the queue share other
        # steps, so steps have another number of tokens.
        ("h200-prefill-queue", {"running", "waiting", "KV usage", "in inference"}),
        # For the same reason no level of waiting: nine requests wait in 74 scrapes.
        ("h200-prefill", {"running", "KV usage", "in inference"}),
    ],
)
def test_an_engine_on_a_gpu_is_replayed_as_it_scheduled(name: str, proven: set[str]) -> None:
    recorded, description = read_recorded(H200 / f"{name}.om.gz")
    assert description.flags.async_scheduling
    (proof, *_) = study({name: (recorded, description)}, seeds=range(3), progress=lambda _: None)[name]
    found = {same[0].quantity: Level.mean_of(same).error for same in zip(*proof.whole, strict=True)}
    assert {quantity for quantity, error in found.items() if error is not None and abs(error) <= 0.1} >= proven
    assert [one for one in proof.classes[0] if not one.near_turn] == []


def test_the_same_engine_replayed_loses_a_queue_of_a_few_scrapes() -> None:
    """What `h200-prefill` is missed by is no difference of engines: scrapes do not tell when in a second requests came.

    The recorded engine itself is not asked: the simulated one is recorded under the load of that recording, and
    replayed from that.
    """
    shape, description = read_recorded(H200 / "h200-prefill.om.gz")
    law = StepLaw(base=0.0048, per_sequence=0.00003, per_held_token=0.0, per_prefill_token=0.0000256)
    config = configuration(shape, flags=description.flags, law=law)
    contending = description.phases[1]
    waited, again = [], []
    for seed in range(8):
        came = poisson(rate=5.0, seconds=50, prompt=contending.prompt, output=contending.output, seed=seed)
        requests = [replace(each, arrival=each.arrival + contending.start) for each in came]
        recorded = play(shape, requests, config=config).recorded
        replayed = play(shape, list(reconstruct(recorded, phases=description.phases, seed=3)), config=config).recorded
        waited.append(float(np.mean(recorded.waiting)))
        again.append(float(np.mean(replayed.waiting)))
    assert 0.1 < np.mean(waited) < 0.6
    assert np.mean(again) < 0.5 * np.mean(waited)


def test_a_recording_differs_nowhere_from_itself() -> None:
    recorded, description = read_recorded(RECORDINGS / "kv-saturation.om.gz")
    once = asyncio.run(named(recorded, flags=description.flags))
    assert differences(once, once) == ()
    assert len({found for _, found in once}) > 1


def test_a_difference_far_from_any_turn_is_told_apart() -> None:
    healthy, capped = DiagnosisClass.HEALTHY, DiagnosisClass.CONCURRENCY_CAPPED
    real = [(at, capped if at >= 100 else healthy) for at in range(0, 200, 5)]
    late = [(at, capped if at >= 110 or at == 50 else healthy) for at in range(0, 200, 5)]
    found = differences(real, late)
    assert [(one.at, one.near_turn) for one in found] == [(50, False), (100, True), (105, True)]


@pytest.mark.parametrize(
    ("real", "simulated", "factor"),
    [
        pytest.param(0, 0, 1.0, id="none in either"),
        pytest.param(100, 80, 1.25, id="fewer"),
        pytest.param(80, 100, 1.25, id="more"),
        pytest.param(0, 3, None, id="only one has any: no factor"),
    ],
)
def test_a_ratio_is_1_or_more(real: float, simulated: float, factor: float | None) -> None:
    assert ratio(real, simulated) == factor


def text_of(folder: Path) -> Path:
    """Unpack the recording in `folder` for editing."""
    packed = folder / "healthy.om.gz"
    plain = folder / "healthy.om"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return plain


def description_with(folder: Path, **changes: Any) -> None:
    path = folder / "healthy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut_description(folder: Path) -> None:
    path = folder / "healthy.json"
    path.write_text(path.read_text()[:-20])


def cut_samples(folder: Path) -> None:
    path = folder / "healthy.om.gz"
    path.write_bytes(path.read_bytes()[:-2000])


def cut_text(folder: Path) -> None:
    path = text_of(folder)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[: len(lines) * 2 // 3]))


def without(family: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = text_of(folder)
        path.write_text("\n".join(line for line in path.read_text().splitlines() if family not in line))

    return edit


def restarted(folder: Path) -> None:
    path = text_of(folder)
    lines = path.read_text().splitlines()
    counter = [index for index, line in enumerate(lines) if line.startswith("vllm:generation_tokens_total{")]
    head, _, time = lines[counter[60]].split(" ")
    lines[counter[60]] = f"{head} 1.0 {time}"
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(lambda folder: (folder / "healthy.json").unlink(), "there is no", id="no description"),
        pytest.param(cut_description, "not JSON", id="a description that is cut off"),
        pytest.param(lambda folder: description_with(folder, phases=[]), "phase_starts", id="phases without starts"),
        pytest.param(
            lambda folder: description_with(folder, argv=["serve", "m", "--max-num-seqs"]),
            "--max-num-seqs",
            id="a flag without its value",
        ),
        pytest.param(
            lambda folder: description_with(folder, phases=[[180, 1.5, [200, 50], [50, 150]]]),
            "no range of lengths",
            id="a range that is upside down",
        ),
        pytest.param(
            lambda folder: description_with(folder, defaults={"max_num_batched_tokens": "8k"}),
            "defaults: max_num_batched_tokens",
            id="a default of another type",
        ),
        pytest.param(cut_samples, "truncated gzip", id="packed samples that are cut off"),
        pytest.param(cut_text, "healthy.om: ", id="text that is cut off"),
        pytest.param(without("vllm:num_requests_waiting"), "no vllm:num_requests_waiting", id="a family is missing"),
        pytest.param(without("cache_config_info"), "cache_config_info", id="the pool is not known"),
        pytest.param(restarted, "generation_tokens_total falls at +", id="a counter falls"),
        pytest.param(lambda folder: shutil.rmtree(folder), "holds no recording", id="no folder"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, spoil: Callable[[Path], None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for suffix in (".om.gz", ".json"):
        shutil.copy(RECORDINGS / f"healthy{suffix}", folder)
    spoil(folder)
    assert main(["--recordings", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("replay: ")
    assert told in error
    assert error.count("\n") == 1


def test_an_unknown_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-recording"]) == 2
    assert "there is no recording no-such-recording" in capsys.readouterr().err


def test_the_command_reports_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "replay.png"
    assert main(["healthy", "--seeds", "1", "--json", "--plot", str(picture)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["summary"]["way"] == PROOF
    assert report["summary"]["holds"] is True
    (row,) = report["recordings"]
    assert [way["way"] for way in row["ways"]] == [PROOF, "own law"], "nothing to leave out with one recording"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["healthy", "--seeds", "1"]) == 0
    assert "recorded pace" in capsys.readouterr().out
