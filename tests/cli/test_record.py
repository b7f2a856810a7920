"""`record`: what is written, that it is read again, and what happens when an engine or a person is in the way."""

import asyncio
import gzip
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.servers import Page, serving
from tests.simulation.virtual import config
from typer.testing import CliRunner, Result
from typing_extensions import override

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.record.command import recorded
from vllm_autotuner.cli.record.options import Plan
from vllm_autotuner.observation import spool as spool_module
from vllm_autotuner.observation.families import Families
from vllm_autotuner.observation.metrics_text import Sample, read_samples
from vllm_autotuner.observation.prometheus import PageReader
from vllm_autotuner.observation.recording import load_recording
from vllm_autotuner.observation.scrape import SCRAPE_TIMEOUT, Clock, scrape_targets
from vllm_autotuner.observation.spool import RecordingFull, Spool
from vllm_autotuner.simulation.metrics_page import render
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request

STARTED = 1_795_000_000.0
REAL_PAGE = Path(__file__).parents[1] / "data" / "vllm-0.32" / "metrics.txt"


class VirtualEngine:
    """A simulated engine with a closed loop of clients, whose time passes while the recorder sleeps."""

    def __init__(self, *, clients: int, seats: int) -> None:
        self.config = config(max_num_seqs=seats)
        self.engine = SimulatedEngine(self.config, started=0.0)
        self.now = 0.0
        for _ in range(clients):
            self._send(at=0.0)

    def _send(self, *, at: float) -> None:
        self.engine.submit(Request(arrival=at, prompt_tokens=200, max_tokens=100))

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.engine.next_step_end) is not None and due <= until:
            for _ in self.engine.advance(due):
                self._send(at=due)
        self.engine.advance(until)
        self.now = until
        # A moment for the loop: signals arrive there.
        await asyncio.sleep(0)

    def clock(self) -> Clock:
        return Clock(started=STARTED, monotonic=lambda: self.now, sleep=self.sleep)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=render(self.engine.metrics, self.config, created=STARTED))


@dataclass(slots=True)
class Read:
    """One family of a recording."""

    type: str
    samples: list[Sample] = field(default_factory=list)


def strictly_read(text: str) -> dict[str, Read]:
    """Families by name, as OpenMetrics wants them: no family and no metric in two places, time only forward.

    prometheus-client's own strict parser takes the second point in time of a histogram for a duplicate.
    """
    *lines, end, rest = text.split("\n")
    assert (end, rest) == ("# EOF", "")
    families: dict[str, Read] = {}
    closed: set[Any] = set()
    last: Any = None
    name = ""
    for line in lines:
        if line.startswith("# "):
            word, described = line.split()[1:3]
            if word == "TYPE":
                assert described not in families
                name, last, closed = described, None, set()
                families[name] = Read(line.split()[3])
            assert described == name
            continue
        (sample,) = read_samples([line])
        assert sample.time is not None
        suffix = sample.name.removeprefix(name)
        assert suffix in {"counter": ("_total",), "gauge": ("",)}.get(
            families[name].type, ("", "_bucket", "_sum", "_count")
        )
        metric = tuple(pair for pair in sample.labels if pair[0] != "le")
        if last is not None and last[0] == metric:
            assert sample.time >= last[1]
        else:
            assert metric not in closed
        last = (metric, sample.time)
        closed.add(metric)
        families[name].samples.append(sample)
    return families


def plan(out: Path, *urls: str, duration: float = 120, interval: float = 2, everything: bool = False) -> Plan:
    return Plan(
        targets=scrape_targets(urls or ("http://engine:8000",)),
        out=out,
        duration=timedelta(seconds=duration),
        interval=timedelta(seconds=interval),
        everything=everything,
    )


async def played(plan: Plan, *, clock: Clock, answer: Callable[[httpx.Request], httpx.Response]) -> bool:
    reader = PageReader(timeout=SCRAPE_TIMEOUT, transport=httpx.MockTransport(answer))
    try:
        return await recorded(plan, clock=clock, reader=reader)
    finally:
        await reader.close()


def run(*args: str, command: str = "record") -> Result:
    result = CliRunner().invoke(app, [command, *args])
    assert "Traceback" not in result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


async def test_what_is_recorded_is_diagnosed(tmp_path: Path) -> None:
    engine, out = VirtualEngine(clients=24, seats=8), tmp_path / "seats.om.gz"
    assert await played(plan(out), clock=engine.clock(), answer=engine)
    result = await asyncio.to_thread(
        run, "--recording", str(out), "--engine-args", "--max-num-seqs 8", command="diagnose"
    )
    assert "ConcurrencyCapped" in result.stdout, result.output
    recording = load_recording(out)
    assert (recording.first, recording.last) == (STARTED, STARTED + 120)


async def test_a_recording_is_strict_openmetrics(tmp_path: Path) -> None:
    engine, out = VirtualEngine(clients=6, seats=4), tmp_path / "strict.om"
    assert await played(plan(out), clock=engine.clock(), answer=engine)
    text = text_of(out)
    assert text.endswith("\n# EOF\n")
    assert text.count("# EOF") == 1
    described = [line.split()[1:3] for line in text.splitlines() if line.startswith("# ") and line != "# EOF"]
    assert len({tuple(one) for one in described}) == len(described)
    families = strictly_read(text)
    assert all(name.startswith("vllm:") or name == "process_start_time_seconds" for name in families)
    assert families["vllm:generation_tokens"].type == "counter"
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert families["vllm:num_requests_running"].type == "gauge"
    assert len(families["vllm:num_requests_running"].samples) == 61


async def test_a_page_of_a_real_engine_survives_with_its_types_and_values(tmp_path: Path) -> None:
    page, out = REAL_PAGE.read_text(), tmp_path / "real.om"
    engine = VirtualEngine(clients=1, seats=1)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=page)

    assert await played(plan(out, duration=4, everything=True), clock=engine.clock(), answer=answer)
    expected = {
        (sample.name, sample.labels): sample.value
        for sample in read_samples(page.splitlines())
        if not sample.name.endswith("_created")
    }
    found = list(read_samples(text_of(out).splitlines()))
    assert {(sample.name, sample.labels) for sample in found} == expected.keys()
    assert all(sample.value == expected[sample.name, sample.labels] for sample in found)
    assert len(found) == 3 * len(expected)
    kinds = Counter(family.type for family in strictly_read(text_of(out)).values())
    assert kinds == {"counter": 21, "histogram": 17, "gauge": 12}


async def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.om.gz", "other.om.gz"):
        engine = VirtualEngine(clients=3, seats=2)
        await played(plan(tmp_path / name, duration=10), clock=engine.clock(), answer=engine)
    assert (tmp_path / "one.om.gz").read_bytes() == (tmp_path / "other.om.gz").read_bytes()


async def test_several_engines_are_told_apart_by_instance(tmp_path: Path) -> None:
    engine, out = VirtualEngine(clients=3, seats=2), tmp_path / "both.om"
    chosen = plan(out, "http://a:8000", "http://b:8000", duration=4)
    assert await played(chosen, clock=engine.clock(), answer=engine)
    families = strictly_read(text_of(out))
    assert {dict(one.labels)["instance"] for one in families["vllm:num_requests_running"].samples} == {
        "a:8000",
        "b:8000",
    }


class Flaky:
    """Answers as `engine` does, but for the scrapes that `fails` names."""

    def __init__(self, engine: VirtualEngine, *, fails: Callable[[int], bool]) -> None:
        self.engine, self.fails, self.scrapes = engine, fails, 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.scrapes += 1
        if self.fails(self.scrapes):
            raise httpx.ConnectError("refused")
        return self.engine(request)


async def test_an_engine_that_goes_away_is_tried_again_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, out = VirtualEngine(clients=3, seats=2), tmp_path / "gap.om"
    flaky = Flaky(engine, fails=lambda scrape: scrape in (1, 2, 5))
    assert await played(plan(out, duration=20), clock=engine.clock(), answer=flaky)
    running = [one for one in read_samples(text_of(out).splitlines()) if one.name == "vllm:num_requests_running"]
    assert [one.time for one in running] == [STARTED + at for at in (4, 6, 10, 12, 14, 16, 18, 20)]
    said = capsys.readouterr().err
    assert "trying again at each scrape: cannot reach http://engine:8000/metrics" in said
    assert "3 scrapes of http://engine:8000/metrics failed" in said


async def test_no_server_for_all_the_time_is_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, out = VirtualEngine(clients=1, seats=1), tmp_path / "nothing.om"
    nobody = Flaky(engine, fails=lambda scrape: True)
    assert not await played(plan(out, duration=20), clock=engine.clock(), answer=nobody)
    assert not out.exists()
    assert "11 scrapes of http://engine:8000/metrics failed" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_stopping_early_keeps_what_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    engine, out = VirtualEngine(clients=3, seats=2), tmp_path / "early.om"

    def answer(request: httpx.Request) -> httpx.Response:
        if engine.now >= 10:
            os.kill(os.getpid(), number)
        return engine(request)

    assert await played(plan(out, duration=36_000), clock=engine.clock(), answer=answer)
    assert "stopped early; wrote" in capsys.readouterr().err
    assert load_recording(out).last < STARTED + 36_000
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# --- what must be refused ---------------------------------------------------------------------------------------------


def test_a_file_that_is_there_is_written_over_only_on_demand(tmp_path: Path) -> None:
    out = tmp_path / "there.om"
    out.write_text("precious")
    with serving(Page()) as url:
        args = ("--metrics", url, "--out", str(out), "--for", "200ms", "--every", "100ms")
        refused = run(*args)
        assert (refused.exit_code, out.read_text()) == (1, "precious")
        assert "--force" in refused.stderr
        assert run(*args, "--force").exit_code == 0
    assert "vllm:num_requests_running" in out.read_text()
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param(["--metrics", "ftp://x", "--out", "a.om"], "is not a URL", id="no URL"),
        pytest.param(["--metrics", "x:1", "--out", "-"], "--out -: give a file name", id="standard output"),
        pytest.param(["--metrics", "x:1", "--out", "/"], "is a folder", id="a folder"),
        pytest.param(["--metrics", "x:1", "--out", "no/such/a.om"], "does not exist", id="no such folder"),
        pytest.param(["--metrics", "x:1", "--out", "a.om", "--for", "0s"], "--for", id="no time"),
        pytest.param(["--metrics", "x:1", "--out", "a.om", "--every", "1ms"], "at least 100ms", id="too often"),
        pytest.param(["--metrics", "x:1", "--out", "a.om", "--header", "a"], "NAME:VALUE", id="half a header"),
    ],
)
def test_a_wrong_option_is_one_line(
    args: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert result.exit_code == 1
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("args", [[], ["--nonsense"]], ids=["nothing given", "an unknown option"])
def test_a_usage_error_is_not_taken_for_nothing_to_record(args: list[str]) -> None:
    assert run(*args).exit_code == 1


@pytest.mark.parametrize(
    ("status", "text", "says", "code"),
    [
        (404, "no", "404", 1),
        (401, "no", "401", 1),
        (200, "<html>", "does not return metrics", 1),
        (200, "node_load1 1\n", "no data: ", 2),
        (200, "vllm:x" + "y" * 70_000 + " 1\n", "longer than", 1),
    ],
    ids=["no such page", "no permission", "a web page", "another exporter", "an endless line"],
)
def test_what_will_never_be_an_engine_ends_at_once(
    tmp_path: Path, status: int, text: str, says: str, code: int
) -> None:
    with serving(lambda path, body: (status, text)) as url:
        result = run("--metrics", url, "--out", str(tmp_path / "a.om"), "--for", "10h")
    assert result.exit_code == code
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


async def test_labels_without_end_stop_the_recording_and_keep_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spool_module, "MOST_SERIES", 50)
    engine, out = VirtualEngine(clients=1, seats=1), tmp_path / "labels.om"
    count = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal count
        lines = [f'vllm:requests{{id="{count + index}"}} 1' for index in range(20)]
        count += 20
        return httpx.Response(200, text="\n".join([*lines, ""]))

    assert await played(plan(out, duration=3600), clock=engine.clock(), answer=answer)
    assert "stopped early (there are more than 50 different series" in capsys.readouterr().err
    assert load_recording(out).last == STARTED + 4


async def test_a_page_that_never_ends_is_a_failed_scrape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, out = VirtualEngine(clients=1, seats=1), tmp_path / "endless.om"

    class Endless(httpx.AsyncByteStream):
        @override
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b"vllm:x 1\n" * 100_000

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Endless())

    assert not await played(plan(out, duration=2), clock=engine.clock(), answer=answer)
    assert "sent more than 32 MiB" in capsys.readouterr().err


# --- families ---------------------------------------------------------------------------------------------------------

PAGE = """# HELP vllm:tokens_total Tokens "so far".
# TYPE vllm:tokens_total counter
# TYPE vllm:odd counter
# TYPE vllm:ttft histogram
# TYPE vllm:lag summary
# TYPE vllm:om counter
# TYPE vllm:strange weird
"""


@pytest.mark.parametrize(
    ("sample", "name", "kind"),
    [
        ("vllm:tokens_total", "vllm:tokens", "counter"),
        ("vllm:odd", "vllm:odd", "unknown"),
        ("vllm:ttft_bucket", "vllm:ttft", "histogram"),
        ("vllm:ttft_count", "vllm:ttft", "histogram"),
        ("vllm:lag", "vllm:lag", "summary"),
        ("vllm:lag_sum", "vllm:lag", "summary"),
        ("vllm:om_total", "vllm:om", "counter"),
        ("vllm:strange", "vllm:strange", "unknown"),
        ("vllm:untold", "vllm:untold", "unknown"),
    ],
)
def test_a_sample_belongs_to_its_family(sample: str, name: str, kind: str) -> None:
    family = Families(PAGE).of(sample)
    assert family is not None
    assert (family.name, family.kind) == (name, kind)


def test_help_is_escaped_and_created_is_left_out() -> None:
    families = Families(PAGE)
    told = families.of("vllm:tokens_total")
    assert told is not None
    assert told.text == 'Tokens \\"so far\\".'
    assert families.of("vllm:tokens_created") is None


def test_a_full_spool_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MOST_SAMPLES", 2)
    spool = Spool(tmp_path)
    samples = list(read_samples(["vllm:a 1", "vllm:b 2", "vllm:c 3"]))
    with pytest.raises(RecordingFull, match="at most 2 samples"):
        spool.add(samples, families=Families(""), time=1.0)


def test_a_gauge_and_a_counter_of_one_name_stay_apart(tmp_path: Path) -> None:
    spool, out = Spool(tmp_path), tmp_path / "out.om"
    page = "# TYPE vllm:a gauge\n# TYPE vllm:a_total counter\nvllm:a 1\nvllm:a_total 2\n"
    for time in (1.0, 2.0):
        spool.add(read_samples(page.splitlines()), families=Families(page), time=time)
    spool.write(out)
    assert out.read_text() == (
        "# TYPE vllm:a gauge\nvllm:a 1.0 1.000\nvllm:a 1.0 2.000\n"
        "# TYPE vllm:a_total unknown\nvllm:a_total 2.0 1.000\nvllm:a_total 2.0 2.000\n# EOF\n"
    )
