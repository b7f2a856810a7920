"""A simulated `vllm serve`: the same command line, endpoints, metrics and failures, in real time, without a GPU.

    python -m vllm_autotuner.simulation.server serve MODEL --max-num-seqs 8 --max-model-len 4096

Everything that a real engine has no flag for comes from SIM_ variables; `settings` lists them. So a pod specification
does not change when its image becomes the real one.
Must not: be part of a decision. Serves `/health`, `/metrics`, `/version`, `/v1/models`, `/v1/completions` and
`/v1/chat/completions`. Exit codes: 2 for a refused command line, 1 for a failed start or a crash, 0 after SIGTERM.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from vllm_autotuner.engine.flags import flags_from
from vllm_autotuner.simulation import openai_api, startup
from vllm_autotuner.simulation.arguments import VERSION, parse_arguments
from vllm_autotuner.simulation.configuration import EngineConfig, StartupRefused, configure
from vllm_autotuner.simulation.driver import EngineDriver
from vllm_autotuner.simulation.environment import Settings, SettingsError, settings_from
from vllm_autotuner.simulation.metrics_page import CONTENT_TYPE, render
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import RequestFailed, RequestRefused

LONGEST_BODY = 64 * 2**20
"""Bytes; a prompt of a million token ids fits."""
SHUTDOWN_SECONDS = 0.2
"""How long open connections may finish after SIGTERM. vLLM aborts what is running."""


class EngineServer:
    """The endpoints of one engine."""

    def __init__(self, driver: EngineDriver, *, model: str, created: float) -> None:
        self.driver = driver
        self._config = driver.engine.config
        self._model = model
        self._created = created

    def application(self) -> web.Application:
        """Return the routes."""
        app = web.Application(client_max_size=LONGEST_BODY)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.chat)
        return app

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 as long as the process lives: a wedged engine is healthy to this probe, as with vLLM."""
        return web.Response()

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer the metrics page."""
        self.driver.catch_up()
        page = render(self.driver.engine.metrics, self._config, created=self._created)
        return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def version(self, _: web.Request) -> web.Response:
        """Answer the version of vLLM whose behaviour this is."""
        return web.json_response({"version": VERSION})

    async def models(self, _: web.Request) -> web.Response:
        """Answer the one model that is served."""
        model = {
            "id": self._config.model_name,
            "object": "model",
            "created": int(self._created),
            "owned_by": "vllm",
            "root": self._model,
            "parent": None,
            "max_model_len": self._config.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer `/v1/completions`."""
        return await self._generate(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer `/v1/chat/completions`."""
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            job = openai_api.read_job(
                await request.json(),
                chat=chat,
                model_name=self._config.model_name,
                max_model_len=self._config.max_model_len,
            )
            generation = self.driver.submit(
                prompt_tokens=job.prompt_tokens,
                max_tokens=job.max_tokens,
                ignore_eos=job.ignore_eos,
                stream=job.stream,
                priority=job.priority,
            )
        except json.JSONDecodeError as error:
            return _error(f"the body is not JSON: {error}", status=400, parameter=None)
        except openai_api.BadBody as error:
            return _error(str(error), status=error.status, parameter=error.parameter)
        except RequestRefused as error:
            return _error(str(error), status=400, parameter=error.parameter)
        except RequestFailed as error:
            return _error(str(error), status=500, parameter=None)
        head: dict[str, Any] = {
            "identity": f"{'chatcmpl' if chat else 'cmpl'}-{generation.sequence.identity}",
            "created": int(time.time()),
            "model_name": self._config.model_name,
        }
        try:
            if job.stream:
                return await self._stream(request, job=job, generation=generation, head=head)
            outcome = await generation.outcome
            body = openai_api.answer(job, **head, output_tokens=outcome.output_tokens, reason=outcome.reason)
            return web.json_response(body)
        finally:
            # Also when the client went away and this handler was cancelled: the engine then aborts the sequence.
            self.driver.leave(generation)

    async def _stream(
        self, request: web.Request, *, job: openai_api.Job, generation: Any, head: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sent, reason = 0, None
        while reason is None:
            await generation.progress.wait()
            generation.progress.clear()
            generated = self.driver.engine.generated(generation.sequence)
            reason = generation.outcome.result().reason if generation.outcome.done() else None
            if generated > sent or reason is not None:
                event = openai_api.chunk(job, **head, new_tokens=generated - sent, reason=reason)
                await response.write(_event(event))
                sent = generated
        if job.include_usage:
            event = openai_api.chunk(job, **head, new_tokens=0, reason=None)
            event = {**event, "choices": [], "usage": openai_api.usage(job, output_tokens=sent)}
            await response.write(_event(event))
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _error(message: str, *, status: int, parameter: str | None) -> web.Response:
    return web.json_response(openai_api.error(message, status=status, parameter=parameter), status=status)


def _say(text: str, *, error: bool = False) -> None:
    stream = sys.stderr if error else sys.stdout
    stream.write(text + "\n")
    stream.flush()


def _log_time() -> str:
    return time.strftime("%m-%d %H:%M:%S")


async def serve(config: EngineConfig, *, settings: Settings, given: dict[str, Any]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if await _set_within(stop, settings.startup_seconds):
        return 0
    engine = SimulatedEngine(config, started=time.monotonic(), faults=settings.faults, seed=settings.seed)
    driver = EngineDriver(
        engine,
        clock=time.monotonic,
        eos_mean_tokens=settings.eos_mean_tokens,
        runaway_share=settings.runaway_share,
        seed=settings.seed,
    )
    server = EngineServer(driver, model=given.get("model", config.model_name), created=time.time())
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS, access_log=None
    )
    await runner.setup()
    host, port = given.get("host") or "0.0.0.0", given.get("port", 8000)  # noqa: S104 - vLLM's own default
    await web.TCPSite(runner, host, port, reuse_address=True).start()
    _say(startup.capacity(config, pid=os.getpid(), at=_log_time()))
    _say(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Application startup complete.")
    driving = asyncio.create_task(driver.run())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(
            (driving, stopping), timeout=settings.faults.crash_after, return_when=asyncio.FIRST_COMPLETED
        )
        if driving.done():
            await driving
        if not stopping.done():
            _say("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", error=True)
            # No goodbye: connections must break off as they do when the process dies.
            os._exit(1)
        return 0
    finally:
        driving.cancel()
        await runner.cleanup()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most so long; return whether it is set."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; return the exit code."""
    given = parse_arguments(sys.argv[1:] if argv is None else argv)
    try:
        settings = settings_from(os.environ)
    except SettingsError as error:
        _say(str(error), error=True)
        return 2
    _say(startup.announcement(given, pid=os.getpid(), at=_log_time()))
    try:
        config = configure(flags_from(given), profile=settings.profile)
    except StartupRefused as error:
        time.sleep(settings.startup_seconds)
        _say(startup.refusal(error, pid=os.getpid(), at=_log_time()), error=True)
        return 1
    return asyncio.run(serve(config, settings=settings, given=given))


if __name__ == "__main__":
    sys.exit(main())
