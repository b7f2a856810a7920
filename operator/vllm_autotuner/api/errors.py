"""Formats validation errors as the Kubernetes API does: the path of the field, then what to write instead."""

from typing import Final

from pydantic import ValidationError

_SHOWN: Final = 5
"""Errors shown in full; the others are only counted, as the first ones usually cause them."""

_LONGEST_KEY: Final = 100
"""Characters of a part of a path that are shown."""

_PREFIX: Final = "Value error, "


def first_errors(error: ValidationError, root: str) -> str:
    """Return the first errors as `spec.engine.args[2]: message`, in one line."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{_path(root, each['loc'])}: {each['msg'].removeprefix(_PREFIX)}" for each in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        lines.append(f"and {len(errors) - _SHOWN} more")
    return "; ".join(lines)


def _path(root: str, location: tuple[int | str, ...]) -> str:
    # The key of a map is the user's, and of any length.
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part[:_LONGEST_KEY]}" for part in location)
