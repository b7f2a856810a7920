"""A results file names a commit that holds the code that was measured."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import result_files
from benchmarks.result_files import RESULTS, ROOT, UnrepeatableError, require_clean_tree, tree_of, write_result
from benchmarks.verdicts import command

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit and an empty results folder."""
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qm", "code")
    return tmp_path


@needs_git
def test_a_clean_tree_is_written_with_its_commit(repository: Path) -> None:
    folder = repository / "benchmarks" / "results"
    path = write_result("speed", {"ms": 1}, folder=folder, root=repository, started=tree_of(repository))
    found = json.loads(path.read_text())
    assert found["ms"] == 1
    assert git(repository, "rev-parse", "HEAD").startswith(found["provenance"]["commit"])


@needs_git
def test_a_second_result_may_follow_the_first_without_a_commit(repository: Path) -> None:
    folder = repository / "benchmarks" / "results"
    for name in ("first", "second"):
        write_result(name, {}, folder=folder, root=repository, started=tree_of(repository))
    assert {path.stem for path in folder.glob("*.json")} == {"first", "second"}


@needs_git
@pytest.mark.parametrize(
    ("file", "told"),
    [pytest.param("code.py", " M code.py", id="changed"), pytest.param("new.py", "?? new.py", id="untracked")],
)
def test_a_dirty_tree_is_refused_before_and_after(file: str, told: str, repository: Path) -> None:
    (repository / file).write_text("2\n")
    with pytest.raises(UnrepeatableError, match="--save refused") as early:
        require_clean_tree(root=repository)
    assert told in str(early.value)
    folder = repository / "benchmarks" / "results"
    with pytest.raises(UnrepeatableError, match="The figures are in ") as late:
        write_result("speed", {"ms": 1}, folder=folder, root=repository, started=tree_of(repository))
    kept = Path(str(late.value).rpartition("The figures are in ")[2])
    assert json.loads(kept.read_text())["provenance"]["commit"].endswith("-dirty")
    assert not (folder / "speed.json").exists()


@needs_git
def test_a_commit_made_during_the_run_is_not_the_one_that_ran(repository: Path) -> None:
    started = tree_of(repository)
    (repository / "code.py").write_text("2\n")
    git(repository, "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qam", "meanwhile")
    with pytest.raises(UnrepeatableError, match=f"the run began on {started.told}"):
        write_result("speed", {}, folder=repository / "benchmarks" / "results", root=repository, started=started)


@needs_git
def test_another_folder_takes_figures_of_a_dirty_tree_and_marks_them(repository: Path, tmp_path: Path) -> None:
    (repository / "code.py").write_text("2\n")
    path = write_result("speed", {}, folder=tmp_path / "tries", root=repository, started=tree_of(repository))
    assert json.loads(path.read_text())["provenance"]["commit"].endswith("-dirty")


def test_without_a_repository_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert tree_of(tmp_path).told == "unknown"
    with pytest.raises(UnrepeatableError, match="needs a git repository"):
        require_clean_tree(root=tmp_path)


def test_a_command_refuses_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise UnrepeatableError("--save refused")

    monkeypatch.setattr(command, "require_clean_tree", refused)
    app = typer.Typer()
    app.command()(command.main)
    found = CliRunner().invoke(app, ["--cases", "100000", "--seed", "900000", "--save"])
    assert found.exit_code == 1
    assert "--save refused" in found.output


@pytest.mark.parametrize("path", sorted(result_files.ROOT.glob("benchmarks/**/*.py")), ids=lambda path: path.stem)
def test_every_command_that_saves_checks_the_tree_first(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name != "result_files.py" and "write_result(" in text:
        assert "    require_clean_tree()\n" in text, (
            "hours of measuring are lost where the tree is only checked at the end"
        )


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_results_file_names_a_commit_of_the_history(path: Path) -> None:
    commit = json.loads(path.read_text(encoding="utf-8"))["provenance"]["commit"]
    assert not commit.endswith("-dirty")
    assert commit != "unknown"
    if shutil.which("git") is None or tree_of(ROOT).commit is None:
        pytest.skip("not a git repository: the history cannot be searched for the commit")
    if git(ROOT, "rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone: the history may begin after the commit")
    ancestor = subprocess.run(
        ["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=ROOT, capture_output=True, check=False
    )
    assert ancestor.returncode == 0, f"{commit} is not in the history of HEAD"
