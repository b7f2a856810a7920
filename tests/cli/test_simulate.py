import gzip
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from vllm_autotuner.cli.command_tree import app

SHORT = ("--for", "3m", "--warm-up", "1m")
BRIEF = ("--for", "80s", "--warm-up", "20s")
"""Where steps or drawings are looked at: a minute of a full batch has more steps than any mean needs."""
STEADY = ("--prompt-tokens", "uniform:100-300", "--output-tokens", "uniform:50-150")
TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{index / 4},{100 + index % 50},40\n" for index in range(400)
)


def run(*args: str) -> Result:
    result = CliRunner().invoke(app, ["simulate", *args])
    assert "Traceback" not in result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answered(*args: str, over: tuple[str, ...] = SHORT) -> dict[str, Any]:
    result = run(*args, *over, "--output", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# --- one service ------------------------------------------------------------------------------------------------------


def test_prints_latencies_goodput_and_a_diagnosis() -> None:
    result = run("--rate", "4", *STEADY, *SHORT)
    assert result.exit_code == 0, result.output
    for word in ("TTFT", "TPOT", "p99", "running", "waiting", "KV cache", "Goodput", "preemptions", "Diagnosis"):
        assert word in result.stdout, word
    assert "Healthy" in result.stdout


def test_figures_fit_together() -> None:
    found = answered("--rate", "4", *STEADY, "--engine-args", "--max-num-seqs 32")
    assert found["engine"]["maxNumSeqs"] == 32
    assert found["arrived"] == pytest.approx(4, rel=0.2)
    assert found["answered"] == pytest.approx(found["arrived"], rel=0.05)
    assert found["goodput"] == found["answered"]
    assert found["outputTokens"] == pytest.approx(found["answered"] * 100, rel=0.1)
    assert found["promptTokens"] == pytest.approx(found["arrived"] * 200, rel=0.1)
    # Little's law: requests in service = rate * time in service, 100 tokens each.
    assert found["running"]["mean"] == pytest.approx(found["answered"] * 100 * found["tpot"]["p50"], rel=0.3)
    assert found["ttft"]["p50"] <= found["ttft"]["p95"] <= found["ttft"]["p99"]
    assert found["failed"] == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param(["--rate", "2"], {"Healthy"}, id="little to do"),
        pytest.param(["--clients", "40", "--engine-args", "--max-num-seqs 8"], {"ConcurrencyCapped"}, id="seats"),
        pytest.param(
            [
                "--clients",
                "120",
                "--engine-args",
                "--max-num-seqs 128 --num-gpu-blocks-override 600 --max-model-len 4k",
            ],
            {"KVCacheSaturated", "PreemptionThrash"},
            id="KV cache",
        ),
        pytest.param(
            ["--clients", "100", "--engine-args", "--max-num-seqs 128", "--tpot", "9ms"],
            {"PastTPOTKnee"},
            id="the knee",
        ),
    ],
)
def test_names_the_bottleneck_that_was_built_in(args: list[str], expected: set[str]) -> None:
    found = answered(*args, *STEADY)
    assert found["diagnosis"]["class"] in expected
    shares = found["diagnosis"]["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert sum(share for name, share in shares.items() if name in expected) > 0.5


def test_a_seed_gives_the_same_answer_to_the_byte() -> None:
    first, again, other = (run("--rate", "4", *STEADY, *SHORT, "-o", "json", "--seed", seed).stdout for seed in "112")
    assert first == again != other


def test_more_replicas_share_the_load() -> None:
    one, two = (answered("--rate", "8", *STEADY, "--replicas", count) for count in "12")
    assert two["gpus"] == 2
    assert two["kvUsage"]["mean"] < 0.6 * one["kvUsage"]["mean"]
    assert two["arrived"] == one["arrived"]


def test_requests_that_are_too_long_are_counted_as_refused() -> None:
    found = answered("--rate", "4", "--prompt-tokens", "uniform:900-1100", "--engine-args", "--max-model-len 1100")
    assert found["failed"]["refused"] > 0
    assert found["attainment"] < 1


def test_a_queue_without_end_is_said_to_be_one() -> None:
    found = answered("--rate", "40", *STEADY, "--engine-args", "--max-num-seqs 4")
    assert [note["kind"] for note in found["notes"]][:1] == ["backlog"]
    assert found["unanswered"] > 1000


def test_what_was_not_measured_is_said() -> None:
    found = answered("--rate", "2", *STEADY, "--engine-args", "-tp 2")
    assert [note["kind"] for note in found["notes"]] == ["tensor-parallel-size"]


# --- loads ------------------------------------------------------------------------------------------------------------


def test_clients_think() -> None:
    found = answered("--clients", "30", "--think", "5s", *STEADY)
    # Each asks once in 5 s of thinking and about 1 s of answer.
    assert found["arrived"] == pytest.approx(30 / 6, rel=0.15)


def test_a_trace_of_requests_is_played_and_scaled(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv.gz"
    path.write_bytes(gzip.compress(TRACE.encode()))
    plain, more = answered("--trace", str(path)), answered("--trace", str(path), "--rate", "6")
    assert plain["arrived"] == pytest.approx(4, rel=0.02)
    assert plain["outputTokens"] == pytest.approx(4 * 40, rel=0.02)
    assert more["arrived"] == pytest.approx(6, rel=0.1)


def test_rates_over_days_are_scaled_to_the_rate_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(
        "category,model,window_start_s,total_rps\nchat,m,0,100\nchat,m,60,500\nchat,m,120,0\nchat,m,180,300\n"
    )
    found = answered("--trace", str(path), "--trace-model", "chat/m", "--rate", "6", "--burstiness", "0", *STEADY)
    # The means of minutes 1 to 3 are 500, a bridge to 300, and 300, of 300 on average.
    assert found["arrived"] == pytest.approx(6 * (500 + 400 + 300) / 3 / 300, rel=0.02)


def test_the_rates_of_the_only_model_need_no_name(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("category,model,window_start_s,total_rps\nchat,m,0,2\nchat,m,60,2\n")
    found = answered("--trace", str(path), "--burstiness", "0", *STEADY)
    assert found["arrived"] == pytest.approx(2, rel=0.02)


def test_lengths_may_come_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(TRACE)
    found = answered("--rate", "4", "--prompt-tokens", f"trace:{path}", "--output-tokens", f"trace:{path}")
    assert found["outputTokens"] == pytest.approx(40 * found["answered"], rel=0.03)


# --- sweeps -----------------------------------------------------------------------------------------------------------


def test_a_sweep_has_a_row_for_each_value_its_best_and_its_knee() -> None:
    load = ("--clients", "80", "--think", "1s", *STEADY)
    found = answered(*load, "--sweep", "maxNumSeqs=8..64", "--tpot", "9ms", over=BRIEF)
    assert [row["value"] for row in found["rows"]] == [8, 16, 32, 64]
    tpot = [row["result"]["tpotAtObjective"] for row in found["rows"]]
    assert tpot == sorted(tpot)
    goodput = {row["value"]: row["result"]["goodput"] for row in found["rows"]}
    assert goodput[found["best"]] >= 0.98 * max(goodput.values())
    # Where the knee says that tokens come in time on average, they do; and half as many again are too many.
    for factor, slower in ((1.0, False), (1.5, True)):
        seats = int(found["knee"] * factor)
        full = ("--clients", str(2 * seats), *STEADY, "--engine-args", f"--max-num-seqs {seats}")
        there = answered(*full, over=BRIEF)
        assert there["running"]["mean"] > 0.95 * seats
        assert (there["tpot"]["p50"] > 0.009 * 1.05) is slower


def test_a_value_that_the_engine_refuses_is_a_row() -> None:
    found = answered("--rate", "2", *STEADY, "--sweep", "tensorParallelSize=1,3")
    assert found["rows"][0]["result"]["engine"]["tensorParallelSize"] == 1
    assert found["rows"][1]["result"] is None
    assert "must be divisible by tensor parallel size (3)" in found["rows"][1]["refusal"]
    result = run("--rate", "2", *STEADY, *SHORT, "--sweep", "tensorParallelSize=1,3")
    assert "tensorParallelSize 3 does not start: Total number of attention heads (32)" in result.stdout.replace(
        "\n", " "
    )


def test_a_sweep_says_which_values_refuse_requests() -> None:
    shown = run("--rate", "4", "--prompt-tokens", "100", *SHORT, "--sweep", "maxModelLen=50,2000").stdout
    assert re.search(r"^maxModelLen 50: failed requests: \d+ refused \(longer than max-model-len\)$", shown, re.M)
    assert "maxModelLen 2000: failed" not in shown


def test_a_narrow_terminal_loses_no_column_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("--rate", "4", *STEADY, *SHORT, "--sweep", "maxNumSeqs=16,64").stdout
    heads, _, first, second = (line.split() for line in shown.splitlines() if line.startswith(" ") and line.strip())
    assert (heads[0], first[0], second[0]) == ("maxNumSeqs", "16", "64")
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


@pytest.mark.parametrize(
    ("sweep", "name", "expected"),
    [
        pytest.param("kvCacheDtype=auto,fp8", "kvCacheDtype", ["auto", "fp8"], id="dtypes"),
        pytest.param("max-model-len=4096,2048", "maxModelLen", [2048, 4096], id="the flag's spelling"),
        pytest.param("maxNumSeqs=8..20", "maxNumSeqs", [8, 16, 20], id="a range ends with its end"),
        pytest.param("maxNumSeqs=8", "maxNumSeqs", [8], id="a single value"),
    ],
)
def test_every_engine_knob_can_be_swept(sweep: str, name: str, expected: list[int | str]) -> None:
    found = answered("--rate", "1", *STEADY, "--sweep", sweep)
    assert [row["result"]["engine"][name] for row in found["rows"]] == expected


def test_replicas_can_be_swept() -> None:
    found = answered("--rate", "4", *STEADY, "--sweep", "replicas=1,2")
    assert [row["result"]["gpus"] for row in found["rows"]] == [1, 2]


# --- plots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "begins"), [("run.png", b"\x89PNG"), ("run.svg", b"<?xml")])
def test_draws_a_run(tmp_path: Path, name: str, begins: bytes) -> None:
    path = tmp_path / name
    assert run("--rate", "4", *STEADY, *BRIEF, "--plot", str(path)).exit_code == 0
    assert path.read_bytes().startswith(begins)


@pytest.mark.parametrize("sweep", ["maxNumSeqs=4,64", "kvCacheDtype=auto,fp8"])
def test_draws_a_sweep(tmp_path: Path, sweep: str) -> None:
    path = tmp_path / "knee.svg"
    assert run("--rate", "6", *STEADY, *BRIEF, "--sweep", sweep, "--plot", str(path)).exit_code == 0
    assert path.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("sweep", [(), ("--sweep", "maxNumSeqs=4,8")], ids=["a run", "a sweep"])
def test_without_matplotlib_everything_but_the_plot_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sweep: tuple[str, ...]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    plain = run("--rate", "1", *SHORT, *sweep)
    result = run("--rate", "1", *SHORT, *sweep, "--plot", str(tmp_path / "x.png"))
    assert (result.exit_code, result.stdout) == (0, plain.stdout)
    assert "pip install '.[report]'" in result.stderr
    assert not (tmp_path / "x.png").exists()


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param([], "no load was named: give one of --rate", id="no load"),
        pytest.param(["--rate", "1", "--clients", "2"], "two loads were named", id="two loads"),
        pytest.param(["--rate", "-1"], "--rate -1: write a number above 0", id="a negative rate"),
        pytest.param(["--rate", "nan"], "--rate nan: write a number above 0", id="a rate that is no number"),
        pytest.param(["--clients", "0"], "--clients 0: write a whole number from 1", id="no clients"),
        pytest.param(["--rate", "1", "--think", "1s"], "--think needs --clients", id="a rate that thinks"),
        pytest.param(["--rate", "1", "--burstiness", "-2"], "--burstiness -2", id="burstiness"),
        pytest.param(["--rate", "1", "--peak-to-trough", "0.5"], "--peak-to-trough 0.5", id="peak"),
        pytest.param(["--rate", "1", "--prompt-tokens", "many"], "--prompt-tokens 'many' is not a length", id="length"),
        pytest.param(["--rate", "1", "--prompt-tokens", "0"], "--prompt-tokens '0': a length must be 1 to", id="zero"),
        pytest.param(["--rate", "1", "--output-tokens", "uniform:9-1"], "the smaller one first", id="range"),
        pytest.param(["--rate", "1", "--output-tokens", "lognormal:p50=9"], "p50 and p95 are needed", id="lognormal"),
        pytest.param(
            ["--rate", "1", "--engine-profile", "abacus"], "unknown profile 'abacus': use one of llama", id="profile"
        ),
        pytest.param(
            ["--rate", "1", "--engine-args", "--max-num-seqs none"], "--max-num-seqs: 'none'", id="flag value"
        ),
        pytest.param(["--rate", "1", "--engine-args", "--max-num-sex 4"], "unrecognized arguments", id="flag name"),
        pytest.param(
            ["--rate", "1", "--engine-args", "-tp 5"], "the engine does not start: Total number of", id="refused"
        ),
        pytest.param(["--rate", "1", "--replicas", "0"], "--replicas 0: write a whole number from 1", id="replicas"),
        pytest.param(["--rate", "1", "--for", "0s"], "--for '0s': write a duration above zero", id="no time"),
        pytest.param(["--rate", "1", "--for", "200h"], "--for: write at most 168h", id="too long"),
        pytest.param(["--rate", "1", "--warm-up", "soon"], "--warm-up 'soon'", id="warm-up"),
        pytest.param(["--rate", "1", "--tpot", "fast"], "--tpot 'fast'", id="objective"),
        pytest.param(["--rate", "1", "--quantile", "2"], "--quantile '2'", id="quantile"),
        pytest.param(["--rate", "1", "--sweep", "speed=1..2"], "write one of maxNumSeqs", id="no such knob"),
        pytest.param(["--rate", "1", "--sweep", "maxNumSeqs=9..2"], "write a range from 1 or more", id="backwards"),
        pytest.param(["--rate", "1", "--sweep", "maxNumSeqs=a,b"], "write a range that doubles", id="no numbers"),
        pytest.param(
            ["--rate", "1", "--sweep", "kvCacheDtype=auto,banana,fp8"],
            "no KV-cache dtype 'banana'; write some of auto, bfloat16, fp8, fp8_e4m3, fp8_e5m2",
            id="no such dtype",
        ),
        pytest.param(["--rate", "1", "--sweep", "replicas=100"], "write a whole number from 1 to 64", id="too many"),
        pytest.param(["--rate", "1", "--sweep", "replicas=1,2", "--replicas", "4"], "not both", id="replicas twice"),
        pytest.param(["--clients", "100000000"], "--clients 100000000: write a whole number", id="too many clients"),
        pytest.param(["--rate", "1", "--plot", "picture.exe"], "ends in .png, .svg, .pdf", id="no picture"),
        pytest.param(["--rate", "1", "--plot", "/no/such/x.png"], "folder /no/such does not exist", id="no folder"),
        pytest.param(["--trace", "/no/such.csv"], "file /no/such.csv does not exist", id="no trace"),
        pytest.param(["--rate", "1", "--trace-model", "m"], "--trace-model needs --trace", id="model of nothing"),
        pytest.param(["--rate", "1", "--max-tokens", "0"], "--max-tokens 0", id="no tokens"),
        pytest.param(["--rate", "1", "--output", "xml"], "--output 'xml' is unknown", id="format"),
    ],
)
def test_bad_input_is_one_clear_error(args: list[str], says: str) -> None:
    result = run(*args)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert says in result.stderr.replace("\n", " ")
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("text", "args", "says"),
    [
        pytest.param(TRACE + "oops,1,1\n", [], "line 402: arrival_s 'oops' is not a number", id="a malformed line"),
        pytest.param(TRACE, ["--prompt-tokens", "5"], "holds requests", id="lengths that the trace has"),
        pytest.param(TRACE, ["--rate", "0.00001"], "no request of", id="nothing left"),
        pytest.param(
            "arrival_s,input_tokens,output_tokens\n0,5,5\n1e-300,5,5\n",
            [],
            "1e+300 requests/s on average, more than 1000000",
            id="requests without an end",
        ),
        pytest.param(
            "category,model,window_start_s,total_rps\nc,m,0,1e300\nc,m,60,5\n",
            [],
            "5e+299 requests/s on average, more than 1000000",
            id="rates without an end",
        ),
        pytest.param(
            "category,model,window_start_s,total_rps\nc,m,0,1\nc,m,60,-2\n",
            ["--trace-model", "m"],
            "line 3: total_rps '-2'",
            id="a negative rate",
        ),
        pytest.param(
            "category,model,window_start_s,total_rps\nc,m,0,1\nc,n,0,1\n",
            [],
            "2 models: name one with --trace-model; c/m, c/n",
            id="which",
        ),
    ],
)
def test_a_bad_trace_is_one_clear_error(tmp_path: Path, text: str, args: list[str], says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    result = run("--trace", str(path), *args)
    assert result.exit_code == 1
    assert says in result.stderr.replace("\n", " ")
    assert str(path) in result.stderr.replace("\n", "")


def test_help_has_examples() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "vllm-autotuner simulate --rate 6" in result.stdout
