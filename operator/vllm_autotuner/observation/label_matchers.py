"""Label matchers that narrow every query to a part of a Prometheus, such as one cluster of a Thanos.

Apart from the questions, which say what is asked of each series. Must not: know a label's meaning.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

__all__ = ["matcher", "selector"]

_WRITTEN: Final = re.compile(r"(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)(?P<sign>=~|!~|!=|=)(?P<value>.*)", re.DOTALL)


def matcher(text: str) -> str:
    """Return a matcher in PromQL; `cluster=eu` becomes `cluster="eu"`. Signs: =, !=, =~, !~. Raises ValueError.

    An engine whose series lack the label is matched by `label=` alone, as in PromQL.
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None or found["label"].startswith("__"):
        raise ValueError(f"label matcher {text!r}: write LABEL=VALUE, LABEL!=VALUE, LABEL=~REGEX or LABEL!~REGEX")
    value = found["value"].strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]  # as it is written in PromQL
    # PromQL's strings are Go's: JSON's are the same as far as its escapes go.
    return f"{found['label']}{found['sign']}{json.dumps(value, ensure_ascii=False)}"


def selector(*matchers: str, match: Sequence[str] = ()) -> str:
    """Return `{a,b}` of all that are not empty; nothing without any."""
    given = [each for each in (*matchers, *match) if each]
    return f"{{{','.join(given)}}}" if given else ""
