import gzip
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.servers import Page, prometheus, serving
from tests.diagnosis.recorded import RECORDINGS
from tests.observation.fleet import NOW, Engine, fleet
from typer.testing import CliRunner, Result

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.diagnosis.text import IN_WORDS
from vllm_autotuner.cli.evaluate.levels import Levels
from vllm_autotuner.cli.evaluate.worst import Worst, worst_of
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.planning.advice import ADVICE

KV = str(RECORDINGS / "kv-saturation.om.gz")
SEATS = str(RECORDINGS / "seats-saturation.om.gz")
HEALTHY = str(RECORDINGS / "healthy.om.gz")
KV_START = 1795210946.408


def run(*args: str) -> Result:
    result = CliRunner().invoke(app, ["diagnose", *args])
    assert "Traceback" not in result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answered(*args: str, code: int = 0) -> dict[str, Any]:
    result = run(*args, "--output", "json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def diagnosis(*args: str) -> dict[str, Any]:
    (service,) = answered(*args)["services"]
    found: dict[str, Any] = service["diagnosis"]
    return found


# --- recordings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param([KV, "--at", "+130s"], "PreemptionThrash", id="an offset from the start"),
        pytest.param([KV, "--at", "1795211087"], "PreemptionThrash", id="Unix seconds"),
        pytest.param([KV, "--at", "1795211087.25"], "PreemptionThrash", id="parts of a second"),
        pytest.param([KV, "--at", "2026-11-20T21:44:47Z"], "PreemptionThrash", id="RFC 3339 in UTC"),
        pytest.param([KV, "--at", "2026-11-20T22:44:47+01:00"], "PreemptionThrash", id="RFC 3339 with an offset"),
        pytest.param([KV, "--at", "+1m"], "Healthy", id="before the pool was full"),
        pytest.param([KV], "Healthy", id="its end, when no moment is named"),
        pytest.param([SEATS, "--at", "+155s", "--engine-args", "--max-num-seqs 4"], "ConcurrencyCapped", id="seats"),
        pytest.param([HEALTHY, "--every", "30s"], "Healthy", id="with a timeline, the end"),
        pytest.param(
            [HEALTHY, "--ttft", "1ms"], "PrefillBound", id="an objective that nobody meets: all of TTFT is prefill"
        ),
        pytest.param([KV, "--at", "+0s"], "Idle", id="its very first sample"),
    ],
)
def test_a_recording_is_evaluated_at_the_moment_asked_about(args: list[str], expected: str) -> None:
    assert diagnosis("--recording", *args)["class"] == expected


def test_the_answer_for_programs_has_its_shape() -> None:
    answer = answered("--recording", KV, "--at", "+130s", "--engine-args", "vllm serve m --max-num-seqs=64 --new 1")
    (service,) = answer["services"]
    assert (service["namespace"], service["service"], service["model"]) == ("", "tiny", "tiny")
    found = service["diagnosis"]
    assert set(found) >= {"class", "confidence", "since", "message", "evidence", "contributing"}
    assert (found["class"], found["confidence"]) == ("PreemptionThrash", "High")
    assert found["since"] == "2026-11-20T21:44:16.408Z"
    assert found["sinceTime"] == pytest.approx(KV_START + 110, abs=0.01)
    for one in found["evidence"]:
        assert set(one) == {"name", "value", "unit", "threshold", "window", "note"}
    usage = next(one for one in found["evidence"] if one["name"] == "KV usage, maximum")
    assert (usage["value"], usage["unit"], usage["threshold"], usage["window"]) == (1.0, "share", 0.9, 30)
    assert answer["at"] == "2026-11-20T21:44:36.408Z"
    assert answer["time"] == pytest.approx(KV_START + 130)
    assert "timeline" not in answer
    assert service["recommendation"]["knob"] == "replicas"
    assert service["recommendation"]["value"] == 2
    assert any(why.startswith("with max-num-seqs 5 a replica finishes 3.20") for why in service["passedOver"])


def test_a_recommended_flag_can_be_pasted() -> None:
    (service,) = answered("--recording", SEATS, "--at", "+155s", "--engine-args", "--max-num-seqs 4")["services"]
    assert service["recommendation"]["flag"] == "--max-num-seqs=15"
    assert service["recommendation"]["current"] == 4


def test_the_timeline_covers_the_whole_recording_in_both_places() -> None:
    answer = answered("--recording", KV, "--every", "30s", "--engine-args", "--max-num-seqs 64")
    (service,) = answer["services"]
    timeline = answer["timeline"]
    assert service["timeline"] == timeline
    assert [point["offset"] for point in timeline] == [30, 60, 90, 120, 150, 180, 210, pytest.approx(221.8, abs=0.1)]
    assert all(point["time"] == pytest.approx(KV_START + point["offset"], abs=0.01) for point in timeline)
    assert timeline[0]["at"] == "2026-11-20T21:42:56.408Z"
    assert [point["class"] for point in timeline] == [
        *("Healthy", "Healthy", "Unclear"),
        *("PreemptionThrash",) * 3,
        *("Healthy", "Healthy"),
    ]
    assert all(set(point) == {"time", "at", "offset", "class", "confidence", "contributing"} for point in timeline)
    assert service["diagnosis"]["class"] == timeline[-1]["class"]


def test_the_headline_of_a_timeline_is_its_worst_class_with_its_share_of_the_time() -> None:
    (service,) = answered("--recording", KV, "--every", "30s")["services"]
    assert service["worst"] == {"class": "PreemptionThrash", "share": pytest.approx(0.46, abs=0.02)}
    text = run("--recording", KV, "--every", "30s").stdout
    first, end = text.index("PreemptionThrash: "), text.index("At the end: Healthy")
    assert first < text.index("46% of the time") < end
    assert "Lower --max-num-seqs" in text
    assert "At the end" not in run("--recording", KV).stdout


def test_a_gap_that_is_over_is_not_what_a_span_is_remembered_for() -> None:
    def level(time: float, named: DiagnosisClass) -> Levels:
        return Levels(
            time=time,
            named=named,
            engines=1,
            ttft=None,
            tpot=None,
            kv_mean=None,
            kv_max=None,
            running=None,
            waiting=None,
        )

    blind, full = DiagnosisClass.METRICS_BLIND, DiagnosisClass.KV_CACHE_SATURATED
    assert worst_of([level(0, full), level(10, full), level(30, blind)]) == Worst(named=full, share=1 / 3)
    assert worst_of([level(0, blind), level(10, blind)]) == Worst(named=blind, share=1)
    assert worst_of([level(0, full)]) is None


def test_what_the_model_does_not_move_is_no_forecast() -> None:
    text = " ".join(run("--recording", KV, "--at", "+140s", "--engine-args", "--max-num-seqs 64").stdout.split())
    assert "By the model, unchanged: TPOT (4.21 ms)." in text
    assert "By the model, TPOT" not in text


def test_a_model_and_a_gpu_are_used_for_the_recommendation(full_by_memory: Path) -> None:
    where = ("--recording", str(full_by_memory), "--at", "+140s", "--engine-args", "--max-num-seqs 64")
    (service,) = answered(*where, "--model", "Qwen/Qwen3-32B", "--gpu", "H100")["services"]
    assert service["recommendation"]["flag"] == "--kv-cache-dtype=fp8"
    (service,) = answered(*where)["services"]
    assert any("or --gpu of a command" in why for why in service["passedOver"])


def test_scrapes_that_are_far_apart_need_a_longer_recording_and_it_says_how_long(tmp_path: Path) -> None:
    with gzip.open(HEALTHY, "rt", encoding="utf-8") as file:
        lines = [line for line in file if line[0] != "#"]
    times = sorted({float(line.rsplit(" ", 1)[1]) for line in lines})
    kept = [times[0]]
    for time in times:
        if len(kept) < 3 and time - kept[-1] >= 30:
            kept.append(time)
    path = tmp_path / "few.om"
    path.write_text("".join(line for line in lines if float(line.rsplit(" ", 1)[1]) in kept) + "# EOF\n")
    answer = answered("--recording", str(path))
    assert answer["services"][0]["diagnosis"]["confidence"] == "Low"
    [note] = [note for note in answer["notes"] if "full window" in note]
    assert re.fullmatch(
        r"only 6\d s of samples; a full window needs 12\d s at this scrape interval of 3\d(\.\d)? s", note
    )


def test_a_timeline_longer_than_the_recording_is_its_end() -> None:
    assert [point["offset"] for point in answered("--recording", HEALTHY, "--every", "1h")["timeline"]] == [
        pytest.approx(180.2, abs=0.05)
    ]


def test_one_moment_and_the_timeline_agree() -> None:
    timeline = answered("--recording", KV, "--every", "30s")["timeline"]
    for point in timeline[3:6]:
        assert diagnosis("--recording", KV, "--at", f"+{point['offset']:.0f}s")["class"] == point["class"]


def test_people_read_the_same_in_words() -> None:
    result = run("--recording", KV, "--every", "30s", "--engine-args", "--max-num-seqs 64", "--ttft", "2s")
    assert result.exit_code == 0
    text = result.stdout
    assert "Healthy: no bottleneck" in text
    assert "+90 s" in text
    assert "PreemptionThrash" in text
    assert "TTFT p95" in text
    assert "\x1b" not in text


def test_people_are_told_what_helps_and_in_which_unit() -> None:
    text = run("--recording", KV, "--at", "+150s", "--engine-args", "--max-num-seqs 64").stdout
    assert "running requests are preempted and recomputed" in text
    assert "5.13 ms" in text
    assert "50 ms" in text
    assert "Lower --max-num-seqs" in text


def test_the_end_of_a_recording_does_not_hide_what_came_before() -> None:
    assert "earlier: PreemptionThrash from +" in run("--recording", KV).stdout
    assert "earlier" not in run("--recording", HEALTHY).stdout


def test_every_class_has_words_and_advice() -> None:
    assert set(IN_WORDS) == set(ADVICE) == set(DiagnosisClass)


# --- what can go wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param([], "no source was named", id="no source"),
        pytest.param(["--recording", KV, "--prometheus", "http://x"], "two sources", id="two sources"),
        pytest.param(["--recording", KV, "--metrics", "http://x"], "two sources", id="two other sources"),
        pytest.param(["--recording", "nothing.om"], "file nothing.om does not exist", id="a missing file"),
        pytest.param(["--recording", __file__], "is not metrics text", id="a file of something else"),
        pytest.param(["--recording", "/"], "cannot read /", id="a folder"),
        pytest.param(["--prometheus", "localhost:9090"], "is not a URL", id="no URL"),
        pytest.param(["--prometheus", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1", id="nobody there"),
        pytest.param(["--metrics", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1/metrics", id="no engine"),
        pytest.param(["--metrics", "ftp://x"], "is not a URL", id="no URL of an engine"),
        pytest.param(["--recording", KV, "--profile", "fast"], "latency, throughput or bursty", id="a profile"),
        pytest.param(["--recording", KV, "--output", "yaml"], "human or json", id="an output"),
        pytest.param(["--recording", KV, "--ttft", "2"], "write a positive duration", id="a duration without a unit"),
        pytest.param(["--recording", KV, "--tpot", "0s"], "--tpot", id="an objective of nothing"),
        pytest.param(["--recording", KV, "--quantile", "95"], "--quantile '95'", id="a quantile in percent"),
        pytest.param(["--recording", KV, "--every", "0s"], "--every", id="every nothing"),
        pytest.param(["--recording", KV, "--at", "noon"], "--at 'noon' is not a time", id="no time"),
        pytest.param(["--recording", KV, "--at", "2026-11-20T21:44:47"], "no time zone", id="no time zone"),
        pytest.param(["--recording", KV, "--at", "+1d"], "+90s", id="no offset"),
        pytest.param(["--recording", KV, "--at", "nan"], "not a time in Unix seconds", id="not a number"),
        pytest.param(["--recording", KV, "--at", "+10m"], "is outside of the recording", id="after its end"),
        pytest.param(["--recording", KV, "--at", "1700000000"], "is outside of the recording", id="before its start"),
        pytest.param(["--recording", KV, "--at", "1795211087000"], "not a time in Unix seconds", id="milliseconds"),
        pytest.param(["--recording", KV, "--at", "+10s", "--every", "10s"], "not both", id="a moment and all"),
        pytest.param(["--recording", KV, "--for", "10s"], "need --metrics", id="--for without --metrics"),
        pytest.param(["--recording", KV, "--service", "a"], "need --prometheus", id="filters without a fleet"),
        pytest.param(["--metrics", "http://x", "--every", "10s"], "needs --recording", id="--every of now"),
        pytest.param(["--metrics", "http://x", "--at", "10"], "--metrics is sampled now", id="--at of now"),
        pytest.param(["--metrics", "http://x", "--for", "1s", "--scrape-interval", "2s"], "--for", id="one scrape"),
        pytest.param(["--recording", KV, "--prometheus-username", "me"], "need --prometheus URL", id="credentials"),
        pytest.param(
            ["--prometheus", "http://x", "--prometheus-username", "me"], "together", id="a user and no password"
        ),
        pytest.param(
            ["--prometheus", "http://x", "--prometheus-bearer-token-file", "nothing"], "credentials", id="no token"
        ),
        pytest.param(["--prometheus", "http://x", "--prometheus-ca-file", "nothing"], "CA file", id="no CA"),
        pytest.param(["--prometheus", "http://x", "--prometheus-header", "a"], "NAME=VALUE", id="half a header"),
        pytest.param(["--prometheus", "http://x", "--at", "+90s"], "start of a recording", id="an offset from what"),
        pytest.param(["--recording", KV, "--engine-args", "--max-num-seqs many"], "--max-num-seqs", id="a value"),
        pytest.param(["--recording", KV, "--engine-args", "--max-num-seqs"], "the value is missing", id="no value"),
        pytest.param(["--recording", KV, "--engine-args", "max-num-seqs 64"], "write --max-num-seqs", id="no dashes"),
        pytest.param(["--recording", KV, "--engine-args", "'"], "Close the quotes", id="an open quote"),
        pytest.param(["--recording", KV, "--engine-args", "-tp 1000"], "tensor_parallel_size", id="an absurd value"),
        pytest.param(["--recording", KV, "--bogus"], "No such option", id="an unknown option"),
        pytest.param(["--recording"], "requires an argument", id="an option without its value"),
        pytest.param([KV], "unexpected extra argument", id="a file without its option"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(args: list[str], says: str) -> None:
    result = run(*args)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert says in result.stderr
    if result.stderr.startswith("error: "):
        assert len(result.stderr.strip().splitlines()) == 1


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_recording_of_something_else_is_no_data(tmp_path: Path) -> None:
    file = written(tmp_path / "other.om", "node_load1 0.5 1795211087\nnode_load1 0.6 1795211097\n# EOF\n")
    result = run("--recording", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no data: other.om contains no vLLM metrics" in result.stderr
    assert answered("--recording", file, code=2)["services"] == []


def test_an_engine_that_went_silent_is_no_data(tmp_path: Path) -> None:
    queues = ("vllm:num_requests_running 4", "vllm:num_requests_waiting 0")
    lines = [*(f"{queue} {second}" for second in range(1000, 1060) for queue in queues), "node_load1 1 1200"]
    file = written(tmp_path / "silent.om", "\n".join([*lines, "# EOF", ""]))
    answer = answered("--recording", file, code=2)
    assert [service["diagnosis"]["class"] for service in answer["services"]] == ["MetricsBlind"]


def test_control_characters_of_foreign_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    labels = '{model_name="evil\x1b[31m[red]",engine="0"}'
    queues = (f"vllm:num_requests_running{labels} 0", f"vllm:num_requests_waiting{labels} 0")
    lines = [f"{queue} {second}" for second in range(1000, 1040, 2) for queue in queues]
    result = run("--recording", written(tmp_path / "evil.om", "\n".join([*lines, "# EOF", ""])))
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "[red]" in result.stdout


# --- engines ----------------------------------------------------------------------------------------------------------

QUICK = ("--for", "600ms", "--scrape-interval", "100ms")


@pytest.mark.parametrize("suffix", ["", "/", "/metrics"], ids=["base URL", "with a slash", "the page"])
def test_an_engine_is_sampled(suffix: str) -> None:
    page = Page(running=4, waiting=9, kv=0.2)
    with serving(page) as url:
        answer = answered("--metrics", url + suffix, *QUICK, "--engine-args", "--max-num-seqs 4")
    (service,) = answer["services"]
    assert page.scrapes >= 4
    assert (service["service"], service["model"]) == ("served", "served")
    assert (service["diagnosis"]["class"], service["diagnosis"]["confidence"]) == ("ConcurrencyCapped", "Low")
    assert any("a full window needs 30 s at this scrape interval of " in note for note in answer["notes"])


def test_several_engines_are_one_service() -> None:
    with serving(Page()) as one, serving(Page(running=9, waiting=30, kv=1.0, preemptions=3)) as other:
        answer = answered("--metrics", one, "--metrics", other, *QUICK, "--engine-args", "--max-num-seqs 64")
    (service,) = answer["services"]
    assert [engine["pod"] for engine in service["engines"]] == sorted(
        url.removeprefix("http://") for url in (one, other)
    )
    assert service["diagnosis"]["class"] == "PreemptionThrash"


def test_an_engine_that_is_down_beside_another_is_a_note() -> None:
    with serving(Page()) as url:
        answer = answered("--metrics", url, "--metrics", "http://127.0.0.1:1", *QUICK)
    assert len(answer["services"][0]["engines"]) == 1
    assert any("http://127.0.0.1:1" in note for note in answer["notes"])


def test_a_page_without_vllm_is_no_data() -> None:
    with serving(lambda path, body: (200, "node_load1 0.5\n")) as url:
        result = run("--metrics", url, *QUICK)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "none of vLLM" in result.stderr


@pytest.mark.parametrize(
    ("status", "text", "says"),
    [(404, "no", "404"), (200, "<html>", "does not answer with metrics"), (500, "", "500")],
    ids=["no such page", "a web page", "an error"],
)
def test_a_page_that_is_none_is_an_error(status: int, text: str, says: str) -> None:
    with serving(lambda path, body: (status, text)) as url:
        result = run("--metrics", url, *QUICK)
    assert (result.exit_code, result.stdout) == (1, "")
    assert says in result.stderr


# --- a fleet ----------------------------------------------------------------------------------------------------------

WAITING = {"vllm:num_requests_running": 60.0, "vllm:num_requests_waiting": 21.0, "vllm:kv_cache_usage_perc": 0.998}
FLEET = (
    Engine(pod="chat-7d4b9c6f5-x2x9z", interval=10),
    Engine(pod="chat-7d4b9c6f5-bcdfg", interval=10),
    Engine(pod="search-0", interval=10, gauges=WAITING, labels={"team": "s"}),
    Engine(pod="search-0", namespace="other", interval=10),
)
AT = ("--at", f"{NOW:.0f}")


def test_a_fleet_is_grouped_by_workload_and_namespace() -> None:
    with serving(prometheus(fleet(*FLEET), at=NOW)) as url:
        answer = answered("--prometheus", url, *AT, "--engine-args", "--max-num-seqs 64", "--tpot", "1s")
    found = {(one["namespace"], one["service"]): one for one in answer["services"]}
    assert {name: one["diagnosis"]["class"] for name, one in found.items()} == {
        ("demo", "chat"): "Healthy",
        ("demo", "search"): "KVCacheSaturated",
        ("other", "search"): "Healthy",
    }
    assert len(found["demo", "chat"]["engines"]) == 2


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        pytest.param(["--namespace", "demo"], ["chat", "search"], id="a namespace"),
        pytest.param(["--service", "search"], ["search", "search"], id="a service in every namespace"),
        pytest.param(["--namespace", "other", "--service", "search"], ["search"], id="both"),
        pytest.param(["--service-label", "team", "--namespace", "demo"], ["chat", "s"], id="a label where it is there"),
    ],
)
def test_filters(filters: list[str], expected: list[str]) -> None:
    with serving(prometheus(fleet(*FLEET), at=NOW)) as url:
        answer = answered("--prometheus", url, *AT, *filters)
    assert [service["service"] for service in answer["services"]] == expected


def test_a_filter_that_matches_nothing_is_no_data() -> None:
    with serving(prometheus(fleet(*FLEET), at=NOW)) as url:
        result = run("--prometheus", url, *AT, "--service", "absent")
    assert result.exit_code == 2
    assert "service absent" in result.stderr


def test_a_fleet_is_one_panel_a_service() -> None:
    with serving(prometheus(fleet(*FLEET), at=NOW)) as url:
        result = run("--prometheus", url, *AT)
    assert result.exit_code == 0
    assert [line for line in ("demo/chat (m)", "demo/search (m)", "other/search (m)") if line in result.stdout] == [
        "demo/chat (m)",
        "demo/search (m)",
        "other/search (m)",
    ]


def test_a_prometheus_that_answers_in_part_is_an_error() -> None:
    partial = json.dumps({"status": "success", "warnings": ["a store is down"], "data": {"result": []}})
    with serving(lambda path, body: (200, partial)) as url:
        result = run("--prometheus", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a store is down" in result.stderr


def test_a_prometheus_without_engines_is_no_data() -> None:
    empty = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}})
    with serving(lambda path, body: (200, empty)) as url:
        result = run("--prometheus", url)
    assert result.exit_code == 2
    assert "no vLLM engine reports to" in result.stderr


# --- the terminal -----------------------------------------------------------------------------------------------------


def test_help_shows_an_example_of_each_source() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for source in ("prometheus http://localhost:9090", "metrics http://localhost:8000", "recording incident.om.gz"):
        assert f"diagnose --{source}" in result.stdout
    assert "2 no data" in result.stdout


def on_a_terminal(*args: str, **environment: str) -> str:
    """What a terminal of 120 columns receives on stdout."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_autotuner", "diagnose", *args],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "PYTHONPATH": "operator", **environment},
        cwd=Path(__file__).parents[2],
    )
    os.close(theirs)
    received = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                part = terminal.read(4096)
            except OSError:  # how Linux says that the other end was closed
                break
            if not part:
                break
            received += part
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return received.decode()


def test_a_terminal_gets_colour_unless_no_color_is_set() -> None:
    coloured = on_a_terminal("--recording", HEALTHY, NO_COLOR="")
    plain = on_a_terminal("--recording", HEALTHY, NO_COLOR="1")
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert "Healthy" in plain
