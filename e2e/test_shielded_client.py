"""Requests to the API server that nobody waits for any more leave no connection open."""

import asyncio
import gc
import ssl

import pytest

from e2e.shielded_client import ShieldedClient


@pytest.mark.parametrize("stream", [False, True], ids=["request", "watch"])
async def test_a_request_given_up_during_the_tls_handshake_leaves_no_socket_open(stream: bool) -> None:
    greeted, ended = asyncio.Event(), asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)  # of the handshake's first message, which is never answered
        greeted.set()
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(late, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = ShieldedClient(verify=ssl.create_default_context(), trust_env=False)
    asking = asyncio.create_task(client.send(client.build_request("GET", f"https://{host}:{port}/"), stream=stream))
    await greeted.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    ended.set()
    await client.aclose()
    server.close()
    await server.wait_closed()
    gc.collect()  # a socket that is still open says so here: pytest makes its ResourceWarning a failure
