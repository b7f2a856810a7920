"""Every relative link and anchor of the pages points to something that exists."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = sorted(
    [
        *(
            ROOT / name
            for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
        ),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
CODE: Final = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//")
HEADING: Final = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
EXPLICIT: Final = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def links(text: str) -> Iterator[str]:
    """The targets of all links, without those that stand in code."""
    for found in LINK.finditer(CODE.sub("`code`", text)):
        yield found[1] or found[2]


def anchors(text: str) -> set[str]:
    """The anchors of a page, as the forge makes them: lower case, no punctuation, repeats are numbered."""
    found = set(EXPLICIT.findall(text))
    without_fences = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in HEADING.findall(without_fences):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        base = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        name, repeat = base, 0
        while name in found:
            repeat += 1
            name = f"{base}-{repeat}"
        found.add(name)
    return found


def broken(page: Path, text: str) -> Iterator[str]:
    """What is wrong with each relative link of `text`, the content of `page`."""
    for link in links(text):
        if REMOTE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT):
            yield f"{link}: leaves the repository"
        elif not target.exists():
            yield f"{link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(_content(target, page=page, text=text)):
            yield f"{link}: no such heading"


def _content(target: Path, *, page: Path, text: str) -> str:
    return text if target == page else target.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_points_to_something(page: Path) -> None:
    assert list(broken(page, page.read_text(encoding="utf-8"))) == []


def test_the_check_finds_what_it_looks_for() -> None:
    text = "# A `b`, c\n[x](y.md#z) `[no](code.md)`\n```\n# no heading\n[no](fence.md)\n```\n## A b c\n[r]: ref.md\n"
    assert list(links(text)) == ["y.md#z", "ref.md"]
    assert anchors(text) == {"a-b-c", "a-b-c-1"}


@pytest.mark.parametrize("link", ["docs/missing.md", "#no-such-heading", "SECURITY.md#none", "../outside.md"])
def test_a_broken_link_is_reported(link: str) -> None:
    assert [found.partition(":")[0] for found in broken(ROOT / "README.md", f"# Title\n[x]({link})")] == [link]
