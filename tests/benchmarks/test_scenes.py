"""Recordings of real engines in known trouble, held against what was read from their samples."""

import json

import pytest

from benchmarks.truths import command
from benchmarks.truths.command import Scene, judge, named, read_scene, scene_names
from vllm_autotuner.api.spec import Objectives
from vllm_autotuner.diagnosis.classes import DiagnosisClass

WINDOW = 30.0
"""Seconds that an evaluation looks back."""
HELD_OUT_AT_LEAST = 0.95
"""Thresholds were set without these. Two evaluations of tpot-knee say Unclear for a service that was near its limit."""


@pytest.mark.parametrize("name", scene_names())
async def test_the_right_class_is_named(name: str) -> None:
    judged = await judge(read_scene(name))
    assert judged.evaluations >= (14 if name.startswith("h200-") else 30)
    right = 1 - len(judged.wrong) / judged.evaluations
    assert right >= (HELD_OUT_AT_LEAST if judged.scene.held_out else 1.0), judged.wrong


@pytest.mark.parametrize("name", scene_names())
async def test_every_class_of_the_truth_is_named_at_some_moment(name: str) -> None:
    scene = read_scene(name)
    turns = (await judge(scene)).turns
    for _, _, classes in scene.truth:
        assert any(turn.endswith(one.value) for turn in turns for one in classes), (classes, turns)


@pytest.mark.parametrize("name", [name for name in scene_names() if name.startswith("h200-")])
async def test_trouble_on_a_gpu_is_named_from_a_window_after_its_start_to_its_end(name: str) -> None:
    scene = read_scene(name)
    start, end, classes = next(span for span in scene.truth if DiagnosisClass.HEALTHY not in span[2])
    held = [found for offset, found in await named(scene, every=1.0) if start + WINDOW <= offset <= end]
    assert len(held) >= min(20, end - start - WINDOW)
    assert set(held) <= classes


def test_a_third_of_the_recordings_had_no_part_in_setting_thresholds() -> None:
    scenes = [read_scene(name) for name in scene_names()]
    assert 3 * sum(scene.held_out for scene in scenes) >= len(scenes)


async def test_a_wrong_truth_is_noticed() -> None:
    scene = read_scene("idle-after-load")
    lie = Scene(
        name=scene.name,
        max_num_seqs=scene.max_num_seqs,
        objectives=Objectives(),
        held_out=False,
        truth=((0.0, 999.0, frozenset({DiagnosisClass.WEDGED})),),
    )
    judged = await judge(lie)
    # A start may be cold; nothing else is allowed beside what was claimed.
    assert len(judged.wrong) >= judged.evaluations - 1


def test_the_command_prints_both_parts_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json", "idle-after-load", "deferred-queue"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert (summary["recordings"], summary["recordings_held_out"]) == (2, 1)
    assert summary["accuracy_where_thresholds_were_set"] == 1.0


def test_an_unknown_recording_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["nothing"])
    assert "no such recording: nothing" in capsys.readouterr().err
