"""A Prometheus whose every answer takes its time: a look takes as long as two of them, one for each round."""

import asyncio
from datetime import timedelta

from aiohttp import web
from aiohttp.test_utils import TestServer

from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot


async def test_no_question_of_a_round_waits_for_another() -> None:
    """With 8 connections the second round took two answers: 3 s each are 9 s for a part of a fleet, and not 6."""
    asked, under_way, together = 0, 0, list[int]()
    first_is_answered = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked, under_way
        asked, under_way = asked + 1, under_way + 1
        if first_is_answered.is_set():
            await asyncio.sleep(0.3)
        first_is_answered.set()
        together.append(under_way)
        under_way -= 1
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    async with TestServer(app) as server:
        source = PrometheusSource(PrometheusAddress(url=str(server.make_url("/")), timeout=timedelta(seconds=10)))
        try:
            snapshot = await take_snapshot(source, at=1000.0, settings=WindowSettings())
        finally:
            await source.close()
    assert snapshot.error is None
    assert max(together) == asked - 1
