"""Puts pictures into the pages of the site where they have been taken: `<!-- picture: NAME, about -->`.

Apart from the pages, because pictures are not part of the repository: a link to a missing one would break the site.
"""

import re
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).with_name("pictures")
OF_PAGES: Final = ("web-fleet", "web-kept", "web-rolled-back", "report", "diagnosis")
"""What `make screenshots` takes, each at both widths."""
OF_DASHBOARDS: Final = ("dashboard-fleet", "dashboard-service")
"""What `make prometheus-operator` takes, drawn from what its Prometheus answers."""
NAMES: Final = (*OF_PAGES, *OF_DASHBOARDS)
MARK: Final = re.compile(r"<!-- picture: ([a-z-]+), ([^>]*) -->")
DESK, PHONE = 1280, 390


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What mkdocs calls for each page."""
    return MARK.sub(_pictures, markdown)


def _pictures(mark: re.Match[str]) -> str:
    name, about = mark.groups()
    there = [width for width in (DESK, PHONE) if (FOLDER / f"{name}-{width}.png").is_file()]
    return " ".join(_picture(name, about, width) for width in there)


def _picture(name: str, about: str, width: int) -> str:
    where, shown = ("on a phone", "24%") if width == PHONE else ("on a desk", "72%")
    file = f"pictures/{name}-{width}.png"
    return f'[![{about}, {where}]({file}){{ style="width: {shown}; vertical-align: top" }}]({file})'
