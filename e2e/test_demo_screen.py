"""The demo's screen: acts that play at once are told one after the other, with nothing lost."""

from io import StringIO

from rich.console import Console

from e2e.demo.screen import Screen


def screen(*, terminal: bool = False, height: int = 24) -> tuple[Screen, StringIO]:
    written = StringIO()
    console = Console(file=written, force_terminal=terminal, width=80, height=height, color_system=None)
    return Screen(plain=not terminal, console=console), written


def told(written: StringIO) -> list[str]:
    """The lines without their time."""
    return [line.partition(" s  ")[2] for line in written.getvalue().splitlines()]


def test_a_chapter_waits_for_those_before_it_and_says_that_it_was_meanwhile() -> None:
    shown, written = screen()
    first, second = shown.chapter(), shown.chapter()
    second.act("Act 2", "later")
    first.act("Act 1", "now")
    second.good("done")
    second.close()
    assert told(written) == ["Act 1: now"]
    first.close()
    assert told(written) == ["Act 1: now", "Act 2, meanwhile: later", "ok   done"]


def test_what_comes_after_the_chapters_before_are_over_is_told_at_once() -> None:
    shown, written = screen()
    first, second = shown.chapter(), shown.chapter()
    first.close()
    second.act("Act 2", "now")
    assert told(written) == ["Act 2: now"]


def test_what_an_end_in_the_middle_left_waiting_is_told() -> None:
    shown, written = screen()
    with shown:
        shown.chapter()
        shown.chapter().bad("it broke")
    assert told(written) == ["FAIL it broke"]


def test_in_a_terminal_the_table_stays_in_sight_below_a_long_story_and_all_of_it_is_told_at_the_end() -> None:
    shown, written = screen(terminal=True)
    with shown:
        shown.show({"chat": {"summary": {"change": "maxNumSeqs=8 Analyzing"}}})
        chapter = shown.chapter()
        for number in range(30):
            written.truncate(0)
            chapter.say(f"line {number} " + "word " * 20)
        frame = written.getvalue()
        assert "maxNumSeqs=8" in frame
        assert "line 29 " in frame
        assert "line 5 " not in frame
        written.truncate(0)
    assert all(f"line {number} " in written.getvalue() for number in range(30))
