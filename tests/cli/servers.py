"""Real HTTP servers on a free loopback port: an engine's page, and a Prometheus that knows a recording."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from typing_extensions import override

from vllm_autotuner.observation.questions import MetricsSource, Question, promql
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot

Answer = Callable[[str, str], tuple[int, str]]
"""Path and body of a request -> status and text."""


@contextmanager
def running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a free port of loopback until left; yields its base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve until left; yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def _answer(self, body: str) -> None:
            status, text = answer(self.path, body)
            with suppress(ConnectionError):  # who gave up waiting is gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        @override
        def log_message(self, *args: object) -> None:
            """Stay silent."""

    with running(Handler) as url:
        yield url


@contextmanager
def redirecting(target: str) -> Iterator[str]:
    """Redirect every request to `target` until left; yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(307)
            self.send_header("Location", target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - the name is the server's

        @override
        def log_message(self, *args: object) -> None:
            """Stay silent."""

    with running(Handler) as url:
        yield url


class Page:
    """An engine's page whose counters grow with each scrape."""

    def __init__(
        self,
        *,
        running: float = 4,
        waiting: float = 0,
        kv: float = 0.3,
        preemptions: float = 0,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.without = without
        self.gauges = {"num_requests_running": running, "num_requests_waiting": waiting, "kv_cache_usage_perc": kv}
        self.preemptions = preemptions
        self.scrapes = 0

    def __call__(self, path: str, body: str) -> tuple[int, str]:
        if path != "/metrics":
            return 404, "not here"
        self.scrapes += 1
        counters = {
            "num_preemptions_total": self.preemptions * self.scrapes,
            "generation_tokens_total": 100.0 * self.scrapes,
            "prompt_tokens_total": 300.0 * self.scrapes,
            "request_success_total": 1.0 * self.scrapes,
        }
        labels = '{engine="0",model_name="served"}'
        lines = [f"vllm:{name}{labels} {value}" for name, value in {**self.gauges, **counters}.items()]
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
            if name in self.without:
                continue
            lines += [f"vllm:{name}_{end}{labels} {size * self.scrapes}" for end, size in (("sum", 0.2), ("count", 10))]
            lines += [
                f'vllm:{name}_bucket{{le="{edge}",{labels[1:]} {10 * self.scrapes}' for edge in ("0.025", "1.0", "+Inf")
            ]
        lines = [line for line in lines if line.partition("{")[0].removeprefix("vllm:") not in self.without]
        return 200, "\n".join([*lines, ""])


class Learning:
    """Remembers each question under its PromQL."""

    def __init__(self, source: MetricsSource) -> None:
        self.source = source
        self.questions: dict[str, Question] = {}

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        self.questions[promql(question)] = question
        return await self.source.ask(question, at=at)


def prometheus(source: MetricsSource, *, at: float) -> Answer:
    """Answer the questions of a snapshot at `at` and of the moments before it, as the HTTP API would."""
    learning = Learning(source)
    asyncio.run(take_snapshot(learning, at=at, settings=WindowSettings()))

    def answer(path: str, body: str) -> tuple[int, str]:
        form = {name: values[0] for name, values in parse_qs(body).items()}
        question = learning.questions.get(form.get("query", ""))
        if path != "/api/v1/query" or question is None:
            return 400, json.dumps({"status": "error", "error": f"unknown: {path} {form}"})
        found = asyncio.run(source.ask(question, at=float(form["time"])))
        result = [
            {"metric": dict(one.labels), "values": [[t, repr(v)] for t, v in zip(one.times, one.values, strict=True)]}
            for one in found
        ]
        return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})

    return answer
