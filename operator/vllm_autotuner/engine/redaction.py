"""Takes credentials out of an engine's own words before anybody else reads them.

What an engine prints at its end reaches a status and Events, which more people may read than a pod's log. Separate from
`startup_log`, so that every pattern is in one place.
Must not: try to be complete. A secret that looks like a word cannot be told from one.
"""

import re
from typing import Final

__all__ = ["HIDDEN", "redacted"]

HIDDEN: Final = "(hidden)"
_NAMED: Final = re.compile(
    r"([\w-]*(?:api[-_]?key|token|secret|passw(?:or)?d|credential)s?['\"]?)(\s*[=:]\s*|\s+)"
    r"(\(hidden\)|\[[^\]]*\]|'[^']*'|\"[^\"]*\"|[^\s,;)}\]]+)",
    re.IGNORECASE,
)
"""A flag, variable, field or header that is named for a secret, and its value. Worked: `--api-key abc`, `HF_TOKEN=abc`,
`'api_key': ['abc']`."""
_USERINFO: Final = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_TOKENS: Final = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|\bsk-[\w-]{12,}|\bgh[pousr]_\w{12,}|\bAKIA[A-Z0-9]{12,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r"|(?<=Bearer )\S+|(?<=Basic )[A-Za-z0-9+/=]{8,}"
)
"""Hugging Face, OpenAI and its likes, GitHub, AWS, JSON Web Tokens, headers."""


def redacted(text: str) -> str:
    """Return the text without what looks like a credential."""
    text = _TOKENS.sub(HIDDEN, _USERINFO.sub(HIDDEN, text))
    return _NAMED.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    name, between, _ = found.groups()
    # `--api-key abc` is a flag and its value; "the token limit is" is a sentence.
    if between.isspace() and not name.startswith("-"):
        return found[0]
    return f"{name}{between}{HIDDEN}"
