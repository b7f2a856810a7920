"""Recordings of a real engine in known trouble, and how often the right class is named.

Each recording carries its truth beside it (NAME.json): spans of seconds with the classes that held, read from the
samples; objectives and seats as its user would have told; and whether it had a part in setting thresholds.
Must not: score what no name fits. Within two windows of a turn, what held before or Unclear is right, too.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.result_files import ROOT, require_clean_tree, write_result
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Objectives
from vllm_autotuner.cli.evaluate.evaluation import Subject, evaluate
from vllm_autotuner.cli.evaluate.moments import Span, recorded
from vllm_autotuner.cli.evaluate.service_groups import one_service
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.observation.recording import load_recording
from vllm_autotuner.observation.snapshot import WindowSettings

__all__ = ["Judged", "Scene", "judge", "named", "read_scene", "scene_names"]

DATA: Final = ROOT / "tests" / "data"
FOLDERS: Final = (DATA / "vllm-0.32" / "scenes", *(DATA / "vllm-0.26-h200" / kind for kind in ("recordings", "scenes")))
EVERY: Final = 5.0
"""Seconds between evaluations."""
TURN: Final = 60.0
"""Seconds after a turn in which the class before it may still be named: two windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One recording and its truth."""

    name: str
    max_num_seqs: int
    objectives: Objectives
    held_out: bool
    """It had no part in setting a threshold."""
    truth: tuple[tuple[float, float, frozenset[DiagnosisClass]], ...]
    """From and to (seconds after the first sample), and what held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was named, and where it was wrong."""

    scene: Scene
    evaluations: int
    wrong: tuple[str, ...]
    turns: tuple[str, ...]
    """Every class that was named, with the second from which it was."""


def scene_names() -> list[str]:
    """Return the recordings that are there."""
    return sorted(path.stem for folder in FOLDERS for path in folder.glob("*.json"))


def read_scene(name: str) -> Scene:
    """Read the truth of a recording. Raises KeyError or ValueError where it has none, StopIteration without a file."""
    told: dict[str, Any] = json.loads(_recording_of(name).with_name(f"{name}.json").read_text())
    truth = told["truth"]
    return Scene(
        name=name,
        max_num_seqs=truth["max_num_seqs"],
        objectives=Objectives.model_validate(truth["objectives"]),
        held_out=truth["held_out"],
        truth=tuple(
            (span["from"], span["to"], frozenset(DiagnosisClass(one) for one in span["classes"]))
            for span in truth["spans"]
        ),
    )


def _recording_of(name: str) -> Path:
    """Return its file. Raises StopIteration when there is none."""
    return next(path for folder in FOLDERS if (path := folder / f"{name}.om.gz").is_file())


async def named(scene: Scene, *, every: float) -> list[tuple[float, DiagnosisClass]]:
    """Return the class every so many seconds, with the seconds after the first sample."""
    recording = load_recording(_recording_of(scene.name))
    (report,) = await evaluate(
        recording,
        schedule=recorded(Span(recording.first, recording.last), every=every),
        grouping=one_service,
        subject=Subject(targets=targets_of(scene.objectives), knobs=EngineKnobs(max_num_seqs=scene.max_num_seqs)),
        settings=WindowSettings(),
    )
    return [(point.time - recording.first, point.diagnosis.primary) for point in report.timeline]


async def judge(scene: Scene) -> Judged:
    """Evaluate the whole recording and compare every moment with the truth."""
    named_at = await named(scene, every=EVERY)
    wrong, turns, last = [], [], None
    for offset, found in named_at:
        if found is not last:
            turns.append(f"+{offset:.0f} s {found.value}")
            last = found
        if found not in (allowed := _allowed(scene, offset)):
            wrong.append(f"+{offset:.0f} s: {found.value} instead of {', '.join(sorted(allowed))}")
    return Judged(scene=scene, evaluations=len(named_at), wrong=tuple(wrong), turns=tuple(turns))


def _allowed(scene: Scene, offset: float) -> set[DiagnosisClass]:
    begun = [span for span in scene.truth if span[0] <= offset]
    allowed = set(begun[-1][2])
    for start, end, classes in begun[:-1]:
        # What held until less than two windows ago is still in the windows.
        if offset - end < TURN and start < offset:
            allowed |= {*classes, DiagnosisClass.UNCLEAR}
    if len(begun) == 1 and offset < TURN:
        allowed.add(DiagnosisClass.COLD_START)
    return allowed


def summary(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the shares of right evaluations, of both parts apart."""

    def share(held_out: bool) -> float | None:
        part = [one for one in judged if one.scene.held_out is held_out]
        total = sum(one.evaluations for one in part)
        return 1 - sum(len(one.wrong) for one in part) / total if total else None

    return {
        "accuracy_where_thresholds_were_set": share(False),
        "accuracy_held_out": share(True),
        "evaluations": sum(one.evaluations for one in judged),
        "recordings": len(judged),
        "recordings_held_out": sum(one.scene.held_out for one in judged),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="scenes.py", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(scene_names())}; default: all")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/scenes.json")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(scene_names()):
        parser.error(f"no such recording: {', '.join(sorted(unknown))}")
    if options.save:
        require_clean_tree()
    judged = [asyncio.run(judge(read_scene(name))) for name in options.names or scene_names()]
    figures = {
        "summary": summary(judged),
        "recordings": [
            {
                "recording": one.scene.name,
                "held_out": one.scene.held_out,
                "evaluations": one.evaluations,
                "wrong": list(one.wrong),
                "named": list(one.turns),
            }
            for one in judged
        ],
    }
    if options.save:
        write_result("scenes", figures)
    if options.json:
        print(json.dumps(figures, indent=2))
        return 0
    for one in judged:
        part = "held out" if one.scene.held_out else "thresholds"
        print(f"{one.scene.name} ({part}): {one.evaluations - len(one.wrong)} of {one.evaluations} right")
        print(f"  {' | '.join(one.turns)}")
        for wrong in one.wrong:
            print(f"  wrong: {wrong}")
    print(figures["summary"])
    return 0
