"""Reads JSON of the Kubernetes API in bounded depth and memory, whatever a tenant wrote into an object of a list.

Apart from `client`, because kopf's watches need the same. An object that is too deep or too large must neither end the
list that it is in nor be lost: what is too much is cut out of the text before it is parsed, and the rest is read as
usual. What stands in its place makes the object's reader refuse it by name.
Must not: know a kind. The two fields that anybody can fill are known by name, in any object; what an object as a
whole has too much of goes by parts, until it is small enough.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import aiohttp
from pydantic_core import from_json
from typing_extensions import override

from vllm_autotuner.api.pod_template import TOO_LARGE
from vllm_autotuner.budgets import JSON_DEPTH, MANAGED_FIELDS_BYTES, OBJECT_BYTES, POD_TEMPLATE_BYTES, Budget

__all__ = ["OBJECT_TOO_LARGE", "BoundedResponse", "bounded", "decoded", "is_cut"]

OBJECT_TOO_LARGE: Final = f"the object is larger than {OBJECT_BYTES.limit // 1024} KiB of JSON; shorten it"
"""Stands in place of the spec of such an object."""

LIMITS: Final[Mapping[bytes, tuple[Budget, bytes]]] = {
    b'"podTemplate"': (POD_TEMPLATE_BYTES, json.dumps(TOO_LARGE).encode()),
    b'"managedFields"': (MANAGED_FIELDS_BYTES, b"[]"),
}
"""Fields without a schema, and what is read instead: the first is the user's, and the second repeats its every key."""
PARTS: Final[Mapping[bytes, tuple[int, bytes]]] = {
    b'"spec"': (0, json.dumps(OBJECT_TOO_LARGE).encode()),
    b'"managedFields"': (1, b"[]"),
    b'"labels"': (1, b"{}"),
    b'"ownerReferences"': (1, b"[]"),
    b'"finalizers"': (1, b"[]"),
    b'"annotations"': (2, b"{}"),
}
"""What an object that is too large loses, and what is read instead: by rank, and the largest part of a rank first. The
spec goes first, and with it the object is refused: read without the rest, it would have no owner, no labels, and no
pause. Data of a ConfigMap stay."""
_WHERE: Final = {b'"items"': 3, b'"object"': 2}
"""At which depth the objects of a list and of an event are."""
LARGE: Final = 128 * 1024
"""Bytes from which a text is looked through for fields to cut, and decoded beside the event loop. A VLLMService with
its status has 20 KB, so that an event of a watch hardly ever is; a list always is."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]')


async def decoded(raw: bytes) -> Any:
    """Decode JSON, large texts in a thread. Raises ValueError for what is no JSON."""
    return await asyncio.to_thread(_decoded, raw) if len(raw) > LARGE else _decoded(raw)


def _decoded(raw: bytes) -> Any:
    return from_json(bounded(raw))


def is_cut(body: Mapping[str, Any]) -> bool:
    """Whether an object was too large, so that its spec is not known."""
    return body.get("spec") == OBJECT_TOO_LARGE


def bounded(raw: bytes) -> bytes:
    """Return the text without what is nested too deep, and without fields that are too large; else as it is."""
    return _cut(raw) if len(raw) > LARGE or _is_deep(raw) else raw


def _is_deep(raw: bytes) -> bool:
    # Cheaper than looking through every event: this reader knows a limit of its own, far below Python's.
    try:
        from_json(raw)
    except ValueError as error:
        return "recursion limit" in str(error)
    return False


def _cut(raw: bytes) -> bytes:
    cuts: list[_Cut] = []
    depth, deep_from = 0, -1
    field, field_from, field_depth = b"", -1, 0
    before, before_end = b"", 0
    objects = _Objects()
    for token in _TOKEN.finditer(raw):
        text, start, end = token.group(), token.start(), token.end()
        if text in b"[{":
            depth += 1
            objects.opened(before, depth=depth, at=start, cuts=cuts)
            if depth == JSON_DEPTH.limit + 1:
                deep_from = start
            if field_from < 0 and before in LIMITS and raw[before_end:start].strip() == b":":
                field, field_from, field_depth = before, start, depth
        elif text in b"]}":
            if depth == JSON_DEPTH.limit + 1:
                cuts.append(_Cut(deep_from, end, JSON_DEPTH, b"null"))
            if depth == field_depth and field_from >= 0:
                budget, instead = LIMITS[field]
                if end - field_from > budget.limit:
                    cuts = [cut for cut in cuts if cut.start < field_from]
                    cuts.append(_Cut(field_from, end, budget, instead))
                field_from = -1
            cuts = objects.closed(depth=depth, at=end, cuts=cuts)
            depth -= 1
        before, before_end = text, end
    parts, done = [], 0
    for cut in cuts:
        cut.budget.exceeded()
        parts += [raw[done : cut.start], cut.instead]
        done = cut.end
    return b"".join([*parts, raw[done:]])


class _Cut(NamedTuple):
    """A part of a text, and what is read instead."""

    start: int
    end: int
    budget: Budget
    instead: bytes

    @property
    def saves(self) -> int:
        """Bytes that are not read."""
        return self.end - self.start - len(self.instead)


class _Objects:
    """The objects of a text: the text itself, the one in an event of a watch, or the items of a list."""

    def __init__(self) -> None:
        self._depth = 1
        """Of the objects."""
        self._open: list[tuple[bytes, int]] = [(b"", 0)]
        """By depth, what is open down to the fields of the metadata: the text before it, and where it begins."""
        self._parts: list[tuple[int, _Cut]] = []
        """What the object may lose, by rank."""
        self._cuts_before = 0

    def opened(self, name: bytes, *, depth: int, at: int, cuts: Sequence[_Cut]) -> None:
        """A list or an object begins after `name`."""
        if depth == 2 and name in _WHERE:
            self._depth = _WHERE[name]
        if not 0 < depth <= self._depth + 2:
            return
        self._open[depth:] = [(name, at)]
        if depth == self._depth:
            self._parts, self._cuts_before = [], len(cuts)

    def closed(self, *, depth: int, at: int, cuts: list[_Cut]) -> list[_Cut]:
        """A list or an object ends; return the cuts so far, and those without which it is too large."""
        if not self._depth <= depth <= self._depth + 2:
            return cuts
        name, start = self._open[depth]
        if depth == self._depth:
            before, inside = cuts[: self._cuts_before], cuts[self._cuts_before :]
            return [*before, *_fitting(inside, self._parts, size=at - start)]
        if name in PARTS and (depth == self._depth + 1 or self._open[depth - 1][0] == b'"metadata"'):
            rank, instead = PARTS[name]
            self._parts.append((rank, _Cut(start, at, OBJECT_BYTES, instead)))
        return cuts


def _fitting(cuts: list[_Cut], parts: Sequence[tuple[int, _Cut]], *, size: int) -> list[_Cut]:
    """The cuts of one object, and as many of its parts as make it small enough."""
    size -= sum(cut.saves for cut in cuts)
    for _, part in sorted(parts, key=lambda each: (each[0], -each[1].saves)):
        if size <= OBJECT_BYTES.limit:
            break
        outside = [cut for cut in cuts if not part.start <= cut.start < part.end]
        saved = part.saves - sum(cut.saves for cut in cuts if cut not in outside)
        if saved > 0:
            cuts, size = sorted([*outside, part], key=lambda cut: cut.start), size - saved
    return cuts


class BoundedResponse(aiohttp.ClientResponse):
    """An answer of which only bounded JSON is read: for kopf's lists, and line by line for its watches."""

    @override
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        if "watch" in self.url.query:
            # kopf reads a watch from the stream itself.
            self.content = _BoundedLines(self.content)  # type: ignore[assignment]
        return self

    @override
    async def read(self) -> bytes:
        if self._body is None:
            body = await super().read()
            self._body = await asyncio.to_thread(bounded, body) if len(body) > LARGE else bounded(body)
        return self._body or b""


class _BoundedLines:
    """A stream of JSON lines, each bounded."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole lines; the last one may lack its end."""
        rest = bytearray()
        async for chunk in self._stream.iter_chunked(size):
            *lines, last = chunk.split(b"\n")
            for line in lines:
                rest += line
                whole = bytes(rest)
                rest.clear()
                yield (await asyncio.to_thread(bounded, whole) if len(whole) > LARGE else bounded(whole)) + b"\n"
            rest += last
        if rest:
            yield bounded(bytes(rest))
