"""`diagnose --watch`: looks again and again, outlives a source that fails, and ends as soon as a person says so."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.servers import Page, serving
from tests.observation.fleet import NOW, Engine, fleet
from tests.patience import PATIENCE
from typer.testing import CliRunner

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.diagnose.watch import Frame, watched
from vllm_autotuner.cli.diagnose.watch_view import as_json_line, as_lines, picture
from vllm_autotuner.cli.diagnosis.request import subject_from
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Evaluation
from vllm_autotuner.cli.evaluate.service_groups import by_labels
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.engine.geometry import Experts
from vllm_autotuner.observation.errors import Unreachable
from vllm_autotuner.observation.questions import MetricsSource, Question
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.planning.platform import platform_named

SUBJECT = subject_from(ObjectiveOptions(tpot="1s"), engine_args="--max-num-seqs 64")
FULL = {"vllm:num_requests_running": 60.0, "vllm:num_requests_waiting": 21.0, "vllm:kv_cache_usage_perc": 0.998}
LOOKS = 4
END = NOW + 15 * LOOKS


class Failing:
    """A source that gives no answer at some of its looks."""

    def __init__(self, source: MetricsSource, *, fails: Callable[[float], bool]) -> None:
        self.source, self.fails = source, fails

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        if self.fails(at):
            raise Unreachable("cannot reach the server")
        return await self.source.ask(question, at=at)


async def frames(*engines: Engine, fails: Callable[[float], bool] = lambda at: False) -> list[Frame]:
    source = Failing(fleet(*engines), fails=fails)
    evaluation = Evaluation(source, grouping=by_labels(None), subject=SUBJECT, settings=WindowSettings())
    seen: list[Frame] = []

    async def pause() -> bool:
        return len(seen) < LOOKS

    await watched(evaluation, source="s", now=lambda: NOW + 15 * len(seen), pause=pause, show=seen.append)
    return seen


def engines() -> tuple[Engine, ...]:
    return Engine(pod="chat-0", end=END, stopped=END), Engine(pod="search-0", end=END, stopped=END, gauges=FULL)


def shown(frame: Frame, *, width: int = 140) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(picture(frame))
    return console.export_text()


async def test_the_experts_of_a_known_mixture_reach_the_windows_that_are_fitted() -> None:
    subject = replace(SUBJECT, platform_of=lambda seen: platform_named(seen, gpu=None, catalogue=Catalogue()))
    named = replace(Engine(pod="chat-0", end=END), labels={"model_name": "Qwen/Qwen3-30B-A3B"})
    for engine, experts in ((named, Experts(128, 8)), (Engine(pod="chat-0", end=END), None)):
        evaluation = Evaluation(fleet(engine), grouping=by_labels(None), subject=subject, settings=WindowSettings())
        await evaluation.look(NOW)
        (report,) = evaluation.reports()
        assert {point.experts for point in report.observation.steps} == {experts}


async def test_every_look_is_shown_with_the_worst_service_first() -> None:
    found = await frames(*engines())
    assert [frame.at for frame in found] == [NOW + 15 * look for look in range(LOOKS)]
    text = shown(found[-1])
    assert text.index("demo/search") < text.index("demo/chat")
    assert "KVCacheSaturated" in text
    assert "KV usage, maximum" in text
    assert "Healthy" in text


async def test_a_source_that_fails_later_is_a_line_and_the_last_answer_stays() -> None:
    found = await frames(*engines(), fails=lambda at: at == NOW + 15)
    assert [bool(frame.problem) for frame in found] == [False, True, False, False]
    text = shown(found[1])
    assert "cannot reach the server" in text
    assert "demo/search" in text
    (line,) = as_lines(found[1])
    assert line.endswith("NO ANSWER cannot reach the server")
    assert json.loads(as_json_line(found[1]))["notes"] == ["no answer: cannot reach the server"]


async def test_a_source_that_fails_at_once_ends_it() -> None:
    with pytest.raises(CommandError, match="cannot reach"):
        await frames(*engines(), fails=lambda at: True)


async def test_without_a_terminal_it_is_one_line_a_service() -> None:
    search, chat = as_lines((await frames(*engines()))[-1])
    assert re.match(
        r"\S+Z demo/search \(m\) KVCacheSaturated \w+ engines=1 running=60 waiting=21 kv=100% ttft=\S+ tpot=\S+ \S",
        search,
    )
    assert " Healthy " in chat


async def test_nothing_there_is_said() -> None:
    (*_, last) = await frames()
    assert "no vLLM engine reports" in shown(last)
    assert as_lines(last)[0].endswith("no vLLM engine reports")


async def test_foreign_names_do_not_reach_the_terminal() -> None:
    evil = Engine(pod="a\x1b[31m-0", end=END, stopped=END)
    (*_, last) = await frames(evil)
    assert "\x1b" not in shown(last)
    assert all("\x1b" not in line for line in as_lines(last))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--recording", "a.om", "--watch"], "--watch needs --prometheus"),
        (["--metrics", "http://127.0.0.1:1", "--watch"], "cannot reach"),
        (["--prometheus", "http://127.0.0.1:1", "--watch"], "cannot reach"),
        (["--metrics", "x", "--watch", "--html", "a.html"], "starts now"),
        (["--metrics", "x", "--refresh", "1s"], "--refresh needs --watch"),
    ],
)
def test_what_cannot_be_watched_is_one_line(args: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["diagnose", *args])
    assert "Traceback" not in result.output
    assert (result.exit_code, result.stdout) == (1, "")
    assert says in result.stderr


def started(url: str, *more: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vllm_autotuner", "diagnose", "--metrics", url, "--watch", "--refresh", "100ms"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "operator")}
    return subprocess.Popen(
        [*command, "--scrape-interval", "50ms", *more], env=environment, stderr=subprocess.PIPE, **options
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_cleanly(number: signal.Signals) -> None:
    with serving(Page()) as url, started(url, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline().decode() for _ in range(3)]
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == b""
    assert all("served" in line and "\x1b" not in line for line in lines)


def test_on_a_terminal_it_renews_itself_and_gives_the_cursor_back() -> None:
    controller, terminal = pty.openpty()
    with serving(Page()) as url, started(url, stdout=terminal) as process:
        os.close(terminal)
        seen = b""
        while seen.count(b"Ctrl-C ends") < 3:
            seen += os.read(controller, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while chunk := os.read(controller, 65536):
                seen += chunk
        except OSError:
            pass  # Linux's way to say that the other side is closed
        assert process.wait(PATIENCE) == 0
    os.close(controller)
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") == 1
