"""The commands of a page, as a reader would copy them.

Apart from the tests, because some are run without a cluster and some on the bed. Must not: change a word of a command.
"""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
QUICKSTART: Final = ROOT / "docs" / "quickstart.md"
README: Final = ROOT / "README.md"
_PROGRAM: Final = "(?:vllm-autotuner|kubectl|helm|docker|pip|python3|git|make)"
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINE: Final = re.compile(rf"^{_PROGRAM} (?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_INLINE: Final = re.compile(rf"`({_PROGRAM}\s[^`]*\s[^`]*)`")
"""With an argument after what it does: without one it is a name, not a command to copy."""


def commands(page: Path) -> list[str]:
    """Those of its blocks without a language, then those in its sentences; continued lines are one command."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for language, block in _FENCE.findall(text) if not language]
    lines = [line for block in blocks for line in _LINE.findall(block)]
    return [*lines, *(" ".join(each.split()) for each in _INLINE.findall(_FENCE.sub("", text)))]
