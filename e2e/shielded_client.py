"""A client of the API server whose requests may be given up at any moment.

Apart from the stage, because whatever follows the API server from a task that gets cancelled needs it.
Must not: know what is asked for.
"""

import asyncio
from typing import Any

import httpx
from typing_extensions import override


class ShieldedClient(httpx.AsyncClient):
    """Whoever asks may be cancelled, the request is not: cut off in a TLS handshake, httpcore leaves the socket open.

    Its `start_tls` closes the connection after an `Exception` only, and `CancelledError` is none. What nobody waits
    for any more ends by itself, at the latest when the client is closed.
    """

    def __init__(self, **options: Any) -> None:
        """The options of httpx.AsyncClient."""
        super().__init__(**options)
        self._under_way: set[asyncio.Task[httpx.Response]] = set()

    @override
    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        sending = asyncio.create_task(super().send(request, **options))
        self._under_way.add(sending)
        sending.add_done_callback(self._under_way.discard)
        return await asyncio.shield(sending)

    @override
    async def aclose(self) -> None:
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await super().aclose()
