import gzip
import os
from pathlib import Path

import pytest

from vllm_autotuner.simulation.traces import Gaps, TraceError, columns_of, read_rates, read_requests

DATA = Path(os.environ.get("VLLM_AUTOTUNER_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))
REQUESTS = "arrival_s,input_tokens,output_tokens\n"
ROWS = "".join(f"{index},{index + 1},9\n" for index in range(50))
RATES = "category,model,window_start_s,total_rps\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def rates(*values: float) -> str:
    return RATES + "".join(f"language,m,{600 * index},{value}\n" for index, value in enumerate(values))


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_reads_requests_in_any_order_of_columns(tmp_path: Path, name: str) -> None:
    text = "\ufeffoutput_tokens,extra,arrival_s,input_tokens\r\n44,x,0.0,374\r\n109,y,4.3146,396\r\n\r\n"
    trace = read_requests(written(tmp_path, text, name))
    assert [(one.at, one.prompt_tokens, one.output_tokens) for one in trace.requests] == [
        (0.0, 374, 44),
        (4.3146, 396, 109),
    ]
    assert (trace.seconds, trace.rate) == (4.3146, 1 / 4.3146)
    assert "arrival_s" in columns_of(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            REQUESTS + "0,1,1\n-1,1,1\n", "line 3: arrival_s '-1' must be a number of 0 or more", id="negative"
        ),
        pytest.param(REQUESTS + "0,1,1\nnan,1,1\n", "line 3: arrival_s 'nan' must be", id="no number"),
        pytest.param(REQUESTS + "0,1,1\n1_0,1,1\n", "line 3: arrival_s '1_0' is not a number", id="only Python's"),
        pytest.param(REQUESTS + "0,1,1\nsoon,1,1\n", "line 3: arrival_s 'soon' is not a number", id="a word"),
        pytest.param(REQUESTS + "5,1,1\n4,1,1\n", "line 3: arrival_s 4 is before the line above it", id="backwards"),
        pytest.param(REQUESTS + "0,1.5,1\n", "line 2: input_tokens '1.5' is not a whole number", id="half a token"),
        pytest.param(REQUESTS + "0,1,0\n", "line 2: output_tokens '0' is not a whole number from 1", id="no output"),
        pytest.param(REQUESTS + "0,1,9999999999999999\n", "line 2: output_tokens", id="absurdly long"),
        pytest.param(REQUESTS + f"0,1,{'0' * 11}199999999999\n", "line 2: output_tokens", id="hidden by zeros"),
        pytest.param(REQUESTS + "0,1\n", "line 2: 2 fields where the first line names 3", id="a field missing"),
        pytest.param("time,prompt\n0,1\n", "line 1: no column arrival_s, input_tokens, output_tokens", id="columns"),
        pytest.param(REQUESTS + "0,1,1\n", "at least two requests", id="a single request"),
        pytest.param(REQUESTS + "7,1,1\n7,1,1\n", "at least two requests at different times", id="all at once"),
        pytest.param("", "at least two requests", id="empty"),
        pytest.param(REQUESTS + "x" * 5000, "line 2: longer than 4096 characters", id="an endless line"),
    ],
)
def test_a_malformed_trace_is_refused_with_file_line_and_reason(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as refused:
        read_requests(path)
    assert str(refused.value).startswith(str(path))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "does not exist", id="missing"),
        pytest.param(gzip.compress((REQUESTS + ROWS).encode())[:-20], "damaged or truncated gzip", id="truncated"),
        pytest.param(b"\xff\xfe\x00\x01", "is not text", id="binary"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "trace.csv.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=says):
        read_requests(path)


def test_a_pipe_is_not_read_in_part(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="is a pipe, which can be read only once: save the trace into a file"):
        columns_of(pipe)


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        read_requests(tmp_path)


def test_rates_become_steps_of_their_window(tmp_path: Path) -> None:
    trace = read_rates(written(tmp_path, rates(10, 20, 30)), model="m")
    curve = trace.curve(scale=0.5)
    assert [curve.rate(at) for at in (0, 599, 600, 1200, 1e6)] == [5.0, 5.0, 10.0, 15.0, 15.0]
    assert trace.curve(repeat=True).rate(1800.0) == 10.0
    assert trace.mean == 20.0


def test_windows_at_zero_and_the_low_ones_among_them_are_missing_not_quiet(tmp_path: Path) -> None:
    # 4 stands beside an empty window and under a tenth of the median; the 9 does not stand beside one.
    trace = read_rates(written(tmp_path, rates(100, 0, 4, 0, 120, 9, 100, 0)), model="m")
    assert list(trace.rates) == [100, None, None, None, 120, 9, 100, None]
    bridged = trace.curve()
    assert [bridged.rate(600.0 * index) for index in range(8)] == [100, 105, 110, 115, 120, 9, 100, 100]
    outage = trace.curve(gaps=Gaps.OUTAGE)
    assert [outage.rate(600.0 * index) for index in range(8)] == [100, 0, 0, 0, 120, 9, 100, 0]
    assert trace.mean == (100 + 120 + 9 + 100) / 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(rates(1, 2).replace("language,m,600", "language,m,-600"), "line 3: window_start_s '-600'", id="t"),
        pytest.param(rates(1, -2), "line 3: total_rps '-2'", id="a negative rate"),
        pytest.param(rates(1, 2, 3).replace("1200", "1300"), "line 4: windows of a model must follow", id="uneven"),
        pytest.param(rates(1), "line 2: one window has no length", id="one window"),
        pytest.param(rates(0, 0), "every window of model 'm' is empty", id="nothing but gaps"),
        pytest.param(rates(1, 2).replace(",m,", ",other,"), "no model 'm' there. There are language/other", id="name"),
        pytest.param(rates(1, 2) + "x,m,0,1\n", "several categories, language, x", id="two categories"),
    ],
)
def test_malformed_rates_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read_rates(written(tmp_path, text), model="m")


@pytest.mark.skipif(not (DATA / "traces").is_dir(), reason=f"no traces in {DATA}: set VLLM_AUTOTUNER_DATA")
def test_published_traces_are_what_their_description_says() -> None:
    chat = read_requests(DATA / "traces" / "azure2023_conv.csv.gz")
    assert len(chat.requests) == 19_366
    assert chat.rate == pytest.approx(5.53, abs=0.01)
    rates_of = {
        model: read_rates(DATA / "traces" / "servegen_rate_10min.csv.gz", model=model).rates
        for model in ("m-small", "m-mid", "m-large")
    }
    assert {model: sum(rate is None for rate in found) for model, found in rates_of.items()} == {
        "m-small": 37,
        "m-mid": 102,
        "m-large": 0,
    }
