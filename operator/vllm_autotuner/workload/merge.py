"""How a user's pod template is merged into the rendered one.

Like Kubernetes' strategic merge, without its directives: maps merge, named things merge by their name, everything else
is replaced, and an explicit null removes what the operator rendered (a probe, for example).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

MERGE_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "env": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists that are merged item by item, and the field by which two items are the same. Other lists are replaced."""


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `overlay` laid over it; neither is changed."""
    result = dict(base)
    for name, value in overlay.items():
        before = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            result[name] = merged(before, value)
        elif name in MERGE_KEYS and isinstance(before, list) and isinstance(value, list):
            result[name] = _by_key(before, value, key=MERGE_KEYS[name])
        else:
            result[name] = value
    return result


def _by_key(base: Sequence[Any], overlay: Sequence[Any], *, key: str) -> list[Any]:
    """Merge items of equal key in their place and append the others in order."""
    result = list(base)
    for item in overlay:
        place = next((index for index, other in enumerate(result) if _same(item, other, key=key)), None)
        if place is None:
            result.append(item)
        else:
            result[place] = merged(result[place], item)
    return result


def _same(one: Any, other: Any, *, key: str) -> bool:
    # Items come from users; one that is no object is passed on for the API server to refuse.
    return isinstance(one, Mapping) and isinstance(other, Mapping) and key in one and one[key] == other.get(key)
