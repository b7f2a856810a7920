"""What is kept is given back for the same task and the same code, and for nothing else."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.closedloop import command, kept_trials
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.kept_trials import KeptTrials, UnusableFolderError, code_of
from benchmarks.closedloop.scoring import Score
from benchmarks.closedloop.trial import CaseOf, PolicyName, Setting, Task, Trial
from benchmarks.result_files import ROOT, STARTED, Tree

TASK = Task(
    case=CaseOf(scenario="cap-bound", seed=7, hardware=hardware_of(["llama-3.1-8b-h100"])), policy=PolicyName.ORACLE
)
SCORE = Score(
    requests=10,
    attainment=1 / 3,
    settled_attainment=0.1,
    gpu_hours=24.0,
    settled_gpus=1.0,
    goodput=0.7,
    settled_goodput=0.7,
    in_time=0.9,
    failed=1,
    restarts=0,
    scalings=2,
    extrapolated_from_hours=None,
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptTrials:
    if STARTED.commit is None:
        pytest.skip("no git repository")
    monkeypatch.setattr(kept_trials, "tree_of", lambda root: Tree(commit=STARTED.commit))
    return KeptTrials(tmp_path, Tree(commit=STARTED.commit))


def trial(task: Task = TASK) -> Trial:
    return Trial(task=task, score=SCORE, notes={"setting": {"seats": 8}}, seconds=1.5)


def test_a_trial_comes_back_whole_and_names_its_commit(kept: KeptTrials) -> None:
    assert kept.known(TASK) is None
    kept.keep(trial())
    found = kept.known(TASK)
    assert found == replace(trial(), commit=STARTED.commit)
    assert found.figures() == {**trial().figures(), "played_at": STARTED.commit}
    assert [one.suffix for one in kept.folder.iterdir()] == [".json"]


@pytest.mark.parametrize(
    "other",
    [
        replace(TASK, policy=PolicyName.AUTOTUNER),
        replace(TASK, case=replace(TASK.case, seed=8)),
        replace(TASK, case=replace(TASK.case, setting=Setting.FIXED)),
        replace(TASK, case=replace(TASK.case, quick=True)),
        replace(TASK, case=replace(TASK.case, noise=False)),
        replace(TASK, case=replace(TASK.case, hardware=hardware_of(["qwen3-32b-h100"]))),
    ],
)
def test_another_task_is_not_known(kept: KeptTrials, other: Task) -> None:
    kept.keep(trial())
    assert kept.known(other) is None


def test_another_code_is_not_known(kept: KeptTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.keep(trial())
    monkeypatch.setattr(kept_trials, "code_of", lambda policy: "another")
    assert kept.known(TASK) is None


def test_what_no_commit_of_ours_played_is_not_known(kept: KeptTrials) -> None:
    kept.keep(trial())
    (file,) = kept.folder.iterdir()
    file.write_text(file.read_text().replace(str(STARTED.commit), "0123456789ab"))
    assert kept.known(TASK) is None


def test_the_code_of_others_is_without_the_decisions_and_the_products_is_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[set[str]] = []

    def told(files: set[Path]) -> str:
        hashed.append({str(one.relative_to(ROOT)) for one in files})
        return "hash"

    monkeypatch.setattr(kept_trials, "_hash_of", told)
    for modules in (kept_trials.OTHERS, kept_trials.PRODUCTS):
        kept_trials._code_of.__wrapped__(modules)
    others, product = hashed
    own = "operator/vllm_autotuner"
    both = {
        "benchmarks/closedloop/offline.py",
        "benchmarks/closedloop/oracle.py",
        "benchmarks/closedloop/rivals.py",
        "benchmarks/closedloop/scenarios.py",
        "benchmarks/closedloop/trial.py",
        f"{own}/simulation/scheduler.py",
        f"{own}/simulation/profiles/llama-3.1-8b-h100.json",
    }
    assert both <= others <= product
    assert not any(one.startswith((f"{own}/scaling/", f"{own}/control/decide/")) for one in others)
    assert {f"{own}/scaling/error_budget.py", f"{own}/control/decide/tick.py"} <= product
    assert not any(".venv" in one for one in product)


def test_a_changed_file_changes_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_trials, "ROOT", tmp_path)
    source = tmp_path / "a.py"
    source.write_text("x = 1\n")
    before = kept_trials._hash_of([source])
    assert kept_trials._hash_of([source]) == before
    source.write_text("x = 2\n")
    assert kept_trials._hash_of([source]) != before


def test_the_hash_of_code_does_not_change_between_two_looks() -> None:
    again = kept_trials._code_of.__wrapped__(kept_trials.OTHERS)
    assert code_of(PolicyName.KEDA) == again != code_of(PolicyName.AUTOTUNER)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"commit": "x"}', '{"commit": 1, "score": 2, "notes": 3}'])
def test_a_damaged_file_is_told_and_its_day_played_again(
    kept: KeptTrials, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.keep(trial())
    (file,) = kept.folder.iterdir()
    file.write_text(text)
    assert kept.known(TASK) is None
    assert f"{file} is damaged" in capsys.readouterr().err


def test_what_cannot_be_kept_is_said_before_anything_is_played(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder, says in ((file, "File exists"), (file / "below", "Not a directory"), (ROOT / "days", "in this repo")):
        with pytest.raises(UnusableFolderError, match=says):
            KeptTrials.at(folder)
    assert not (ROOT / "days").exists()


def test_nothing_is_kept_of_a_tree_that_has_changed_since(kept: KeptTrials) -> None:
    KeptTrials(kept.folder, Tree(commit="0123456789ab")).keep(trial())
    assert not list(kept.folder.iterdir())


def test_an_error_ends_the_run_at_once(kept: KeptTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Task] = []

    def run(task: Task) -> Trial:
        played.append(task)
        time.sleep(0.2)
        return trial(task)

    def full(self: KeptTrials, played: Trial) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(KeptTrials, "keep", full)
    tasks = [replace(TASK, case=replace(TASK.case, seed=seed)) for seed in range(20)]
    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match="No space"):
        list(command._trials(tasks, pool, kept))
    assert len(played) < 5


def test_what_is_known_is_not_played_again(kept: KeptTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Task] = []

    def run(task: Task) -> Trial:
        played.append(task)
        return trial(task)

    monkeypatch.setattr(command, "run", run)
    other = replace(TASK, policy=PolicyName.AUTOTUNER)
    with ThreadPoolExecutor(1) as pool:
        assert [one.commit for one in command._trials([TASK], pool, kept)] == [None]
        again = list(command._trials([other, TASK], pool, kept))
        assert [(one.task, one.commit) for one in again] == [(TASK, STARTED.commit), (other, None)]
        assert played == [TASK, other]
        assert len(list(command._trials([TASK], pool, None))) == 1
    assert played == [TASK, other, TASK]
