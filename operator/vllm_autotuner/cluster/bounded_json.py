"""Reads JSON of the Kubernetes API in bounded depth and memory, whatever a tenant wrote into an object of a list.

Apart from `client`, because kopf's watches need the same. An object that is too deep or too large must neither end the
list that it is in nor be lost: what is too much is cut out of the text before it is parsed, and the rest is read as
usual. What stands in its place makes the object's reader refuse it by name.
Must not: know a kind. The two fields that anybody can fill are known by name, in any object.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
from pydantic_core import from_json
from typing_extensions import override

from vllm_autotuner.api.pod_template import TOO_LARGE
from vllm_autotuner.budgets import JSON_DEPTH, MANAGED_FIELDS_BYTES, POD_TEMPLATE_BYTES, Budget

__all__ = ["BoundedResponse", "bounded", "decoded"]

LIMITS: Final[Mapping[bytes, tuple[Budget, bytes]]] = {
    b'"podTemplate"': (POD_TEMPLATE_BYTES, json.dumps(TOO_LARGE).encode()),
    b'"managedFields"': (MANAGED_FIELDS_BYTES, b"[]"),
}
"""Fields without a schema, and what is read instead: the first is the user's, and the second repeats its every key."""
LARGE: Final = 128 * 1024
"""Bytes from which a text is looked through for fields to cut, and decoded beside the event loop. A VLLMService with
its status has 20 KB, so that an event of a watch hardly ever is; a list always is."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]')


async def decoded(raw: bytes) -> Any:
    """Decode JSON, large texts in a thread. Raises ValueError for what is no JSON."""
    return await asyncio.to_thread(_decoded, raw) if len(raw) > LARGE else _decoded(raw)


def _decoded(raw: bytes) -> Any:
    return from_json(bounded(raw))


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
    for token in _TOKEN.finditer(raw):
        text, start, end = token.group(), token.start(), token.end()
        if text in b"[{":
            depth += 1
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
