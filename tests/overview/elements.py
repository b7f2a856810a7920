"""What a browser would build from a page, and texts that try to change it."""

from html.parser import HTMLParser
from typing import Final

from typing_extensions import override


class Elements(HTMLParser):
    """What a browser would build: elements with their attributes, and the text between them."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    @override
    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(sorted(attributes))) for tag, attributes in self.elements]


def runs_and_loads_nothing(document: str) -> None:
    """Assert that a page has no script and nothing that a browser would fetch."""
    for tag, attributes in Elements(document).elements:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base"}, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href"):
                assert not (value or "").lower().lstrip().startswith(("javascript:", "data:", "//", "http")), value
    assert "@import" not in document


NASTY: Final = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><script>",
    "</title><svg onload=alert(1)>",
    "]]><svg onload=alert(1)>",
    "<!-- ",
    "&lt;script&gt;",
    "$x^2$",
    "javascript:alert(1)",
    "\x00\x1b[31m\u202e",
)
