"""The pieces of every HTML page here: the document, texts of others made harmless, badges, lists and tables.

No script and nothing fetched. Every text passes `safe`: names come from metrics and tenants, messages from servers, and
none of them is trusted. Must not: know what is shown.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.overview.plain_text import printable
from vllm_autotuner.overview.style import STYLE

__all__ = [
    "LONGEST",
    "LONGEST_NUMBER",
    "STYLE_HASH",
    "badge",
    "cell",
    "definitions",
    "document",
    "listed",
    "number_cell",
    "safe",
    "table",
]

LONGEST: Final = 2000
"""Characters of one text: twice the longest message of a status. A field that a tenant filled stays a line."""
LONGEST_NUMBER: Final = 40
"""Characters of a number with its unit, or of another short word that does not wrap."""
STYLE_HASH: Final = f"sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}"
"""Of the style sheet, for a Content-Security-Policy that allows no other."""


def safe(text: object, *, longest: int = LONGEST) -> str:
    """Make any text harmless in an element and in a quoted attribute, and at most `longest` characters long."""
    shown = str(text)
    shown = shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
    return escape(printable(shown), quote=True)


def document(title: str, body: Iterable[str], *, policy: str | None = None) -> str:
    """Return the whole page. `policy`: a Content-Security-Policy in the file itself; a server sends it as a header."""
    # If an escape is ever missed, the browser still runs and fetches nothing.
    meta = (
        "" if policy is None else f'<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=True)}">'
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{meta}'
        f"<title>{safe(title)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def badge(named: str) -> str:
    """A diagnosis class with its colour; an unknown one is written without."""
    known = named in set(DiagnosisClass)
    return f'<span class="badge{f" is-{named}" if known else ""}">{safe(named, longest=64)}</span>'


def listed(title: str, lines: Iterable[str]) -> str:
    """A heading and its lines; nothing without any."""
    items = "".join(f"<li>{safe(line)}</li>" for line in lines)
    return f"<h3>{safe(title)}</h3><ul>{items}</ul>" if items else ""


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Names and texts, one below the other."""
    return f"<dl>{''.join(f'<dt>{safe(name)}</dt><dd>{safe(value)}</dd>' for name, value in rows)}</dl>"


def cell(content: str, *, label: str) -> str:
    """A cell of `table`; `content` is HTML. On a phone its label stands before it."""
    return f'<td data-label="{safe(label)}">{content}</td>'


def number_cell(text: str, *, label: str) -> str:
    """A cell with a number, which does not wrap: what is longer is no number."""
    return f'<td data-label="{safe(label)}" class="number">{safe(text, longest=LONGEST_NUMBER)}</td>'


def table(titles: Sequence[str], rows: Iterable[str], *, caption: str) -> str:
    """A table that becomes one block a row on a phone; `rows` are the cells of each, as HTML."""
    head = "".join(f'<th scope="col">{safe(title)}</th>' for title in titles)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<table class="stacks"><caption>{safe(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
