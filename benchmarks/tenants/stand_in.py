"""`python -m benchmarks.tenants.stand_in SHAPES PORT`: answers the operator's questions as a Prometheus does.

It stands in for Prometheus where that would need tens of gigabytes: the bytes of its answers are those of a real one,
and it sends them as fast as the operator reads. How many engines each tenant has is told by PUT /tenants, what is wrong
with the server by PUT /trouble.
Must not: answer a question whose shape was not recorded.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from benchmarks.tenants.shapes import NAMESPACE, POD, Shape, loaded, namespaces_of, shape_of

AT_ONCE: Final = 256 * 1024
"""Bytes that are written at once."""
HEAD: Final = '{{"status":"success","data":{{"resultType":"{kind}","result":['
TAIL: Final = b"]}}"
COUNT: Final = "count by (namespace) "
"""How the question begins that is only asked where there are too many series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong with the server."""

    delay: float = 0.0
    """Seconds that each answer takes longer."""
    fails: int = 0
    """Each so many questions one is refused; 0: none."""
    empty: bool = False
    """It has lost all series."""


class StandIn:
    """The server's state."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._shapes = shapes
        self._pods: dict[str, list[str]] = {}
        self._engines = 1
        self._trouble = Trouble()
        self.unknown: list[str] = []
        self.asked = 0
        self.sent = 0

    async def tenants(self, request: web.Request) -> web.Response:
        """Take over who there is: the pods of each namespace's VLLMServices, and how many engines there are for each of
        these pods, itself included."""
        told = await request.json()
        self._pods, self._engines = told["pods"], told["engines"]
        self.asked, self.sent, self.unknown = 0, 0, []
        return web.Response()

    async def trouble(self, request: web.Request) -> web.Response:
        """Have this trouble from now on, and no other."""
        self._trouble = Trouble(**await request.json())
        return web.Response()

    async def report(self, _: web.Request) -> web.Response:
        """Tell what was sent, and which questions could not be answered."""
        return web.json_response({"asked": self.asked, "sent": self.sent, "unknown": self.unknown})

    async def query(self, request: web.Request) -> web.StreamResponse:
        """Answer an instant query."""
        self.asked += 1
        trouble = self._trouble
        if trouble.fails and self.asked % trouble.fails == 0:
            return web.json_response({"status": "error", "error": "overloaded"}, status=503)
        await asyncio.sleep(trouble.delay)
        form = await request.post()
        query, at = str(form["query"]), float(str(form["time"]))
        if query.startswith(COUNT):
            return web.json_response(self._census([] if trouble.empty else namespaces_of(query), at=at))
        shape = self._shapes.get(shape_of(query))
        if shape is None:
            self.unknown.append(query)
            return web.json_response({"status": "error", "error": f"no such shape: {query}"}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        part, first = bytearray(HEAD.format(kind=shape.kind).encode()), True
        block = shape.block(query, at=at).encode()
        if block and not trouble.empty:
            for namespace in namespaces_of(query) or self._pods:
                if namespace not in self._pods:
                    continue
                mine = block.replace(NAMESPACE.encode(), namespace.encode())
                for pod in self._names(namespace):
                    part += (b"" if first else b",") + mine.replace(POD.encode(), pod)
                    first = False
                    if len(part) >= AT_ONCE:
                        self.sent += len(part)
                        await response.write(bytes(part))
                        part.clear()
        await response.write(bytes(part) + TAIL)
        self.sent += len(part)
        return response

    def _census(self, namespaces: Sequence[str], *, at: float) -> dict[str, Any]:
        """How many series each namespace has: those of all answers, as many for each of its engines."""
        each = self._engines * sum(len(shape.entries) for shape in self._shapes.values())
        result = [
            {"metric": {"namespace": name}, "value": [at, str(each * len(self._pods.get(name, ())))]}
            for name in namespaces
        ]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}

    def _names(self, namespace: str) -> Sequence[bytes]:
        # Only these pods are VLLMServices'; the others are engines that nobody tunes.
        pods = self._pods[namespace]
        others = (f"other-{number:06}".encode() for number in range(len(pods), self._engines * len(pods)))
        return [*(pod.encode() for pod in pods), *others]


def application(stand_in: StandIn) -> web.Application:
    """Return the server."""
    found = web.Application(client_max_size=2**20)
    found.add_routes(
        [
            web.put("/tenants", stand_in.tenants),
            web.put("/trouble", stand_in.trouble),
            web.get("/report", stand_in.report),
            web.post("/api/v1/query", stand_in.query),
        ]
    )
    return found


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal ends it."""
    shapes, port = arguments
    stand_in = StandIn(loaded(Path(shapes).read_text(encoding="utf-8")))
    web.run_app(application(stand_in), host="127.0.0.1", port=int(port), print=None)


if __name__ == "__main__":
    main(sys.argv[1:])
