from pathlib import Path

import pytest

from vllm_autotuner.observation.whole_file import replacing


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "report.html"
    precious.write_text("mine")
    link.symlink_to(precious)
    for planted in ("report.html.part", ".report.html.part"):
        (tmp_path / planted).symlink_to(precious)
    with replacing(link) as part:
        part.write_text("new")
    assert (precious.read_text(), link.read_text(), link.is_symlink()) == ("mine", "new", False)


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as part:
        part.write_text("half\ud800", encoding="utf-8")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("out", "old")]


def test_the_file_can_be_read_by_those_who_read_others(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "out") as part:
        part.write_text("x")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_what_is_no_file_is_written_itself() -> None:
    with replacing(Path("/dev/null")) as part:
        assert part == Path("/dev/null")
