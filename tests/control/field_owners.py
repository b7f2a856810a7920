"""Who owns which field of an object, as the API server keeps it: server-side apply takes with force, an update takes
what it changes.

Only for what the fleet loop renders: lists are atomic but for containers and their environment, which go by name.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_autotuner.workload.labels import OPERATOR

Path = tuple[str, ...]
BY_NAME = ("containers", "env")


def leaves(body: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield the fields that can be owned, each with its value."""
    for key, value in body.items():
        here = (*path, f"f:{key}")
        if isinstance(value, Mapping):
            yield from leaves(value, here)
        elif isinstance(value, list) and key in BY_NAME:
            for each in value:
                yield from leaves(each, (*here, "k:" + json.dumps({"name": each["name"]}, separators=(",", ":"))))
        else:
            yield here, value


def fields_of(body: Mapping[str, Any]) -> dict[Path, object]:
    metadata = {key: body["metadata"].get(key) or {} for key in ("annotations", "labels")}
    return dict(leaves({"metadata": metadata, "spec": body["spec"]}))


@dataclass
class Owners:
    """Of one object: each manager (and the subresource it came through), and the fields that are its own."""

    fields: dict[tuple[str, str], set[Path]] = field(default_factory=dict)
    writes: list[tuple[str, str]] = field(default_factory=list)

    def applied(self, body: Mapping[str, Any], *, by: str) -> None:
        self._give(set(fields_of(body)), by=by, via="", keeps=False)

    def updated(self, before: Mapping[str, Any], after: Mapping[str, Any], *, by: str, via: str) -> None:
        old, new = fields_of(before), fields_of(after)
        gone = old.keys() - new.keys()
        for owned in self.fields.values():
            owned -= gone
        self._give({path for path, value in new.items() if old.get(path) != value}, by=by, via=via, keeps=True)

    def keep(self, made: dict[str, Any], *, live: Mapping[str, Any]) -> None:
        """Put into an object that we apply what it leaves out of the live one and others own."""
        theirs = set[Path]().union(*(owned for (manager, _), owned in self.fields.items() if manager != OPERATOR))
        for path in theirs & fields_of(live).keys() - fields_of(made).keys():
            _put(made, path, fields_of(live)[path])

    def _give(self, paths: set[Path], *, by: str, via: str, keeps: bool) -> None:
        for owned in self.fields.values():
            owned -= paths
        kept = self.fields.get((by, via), set()) if keeps else set()
        self.fields[by, via] = kept | paths
        self.writes = [each for each in self.writes if each != (by, via)] + [(by, via)]

    def managed_fields(self) -> list[dict[str, Any]]:
        """As `metadata.managedFields`; a later write has a later time."""
        found = []
        for time, (manager, via) in enumerate(self.writes):
            nested: dict[str, Any] = {}
            for path in self.fields[manager, via]:
                level = nested
                for key in path:
                    level = level.setdefault(key, {})
            entry = {"manager": manager, "fieldsV1": nested, "time": f"2026-11-21T12:00:{time:02}Z"}
            found.append(entry | ({"subresource": via} if via else {}))
        return found


def _put(body: dict[str, Any], path: Path, value: object) -> None:
    node: Any = body
    for step, following in zip(path, (*path[1:], ""), strict=True):
        if step.startswith("k:"):
            key = json.loads(step.removeprefix("k:"))
            found = next((each for each in node if each["name"] == key["name"]), None)
            if found is None:
                node.append(found := dict(key))
            node = found
        elif following:
            node = node.setdefault(step.removeprefix("f:"), [] if following.startswith("k:") else {})
        else:
            node[step.removeprefix("f:")] = copy.deepcopy(value)
