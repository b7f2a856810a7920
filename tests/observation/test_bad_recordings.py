"""Files that are no recordings: a clear error each, and memory that stays small whatever they hold."""

import gzip
import os
import threading
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.diagnosis.recorded import RECORDINGS

from vllm_autotuner.observation import metrics_text
from vllm_autotuner.observation import recording as recording_module
from vllm_autotuner.observation.errors import Unreadable
from vllm_autotuner.observation.metrics_text import read_samples
from vllm_autotuner.observation.recording import load_recording

REAL = (RECORDINGS / "healthy.om.gz").read_bytes()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_recording_is_told_as_such(tmp_path: Path, share: float) -> None:
    file = tmp_path / "cut.om.gz"
    file.write_bytes(REAL[: int(len(REAL) * share)])
    with pytest.raises(Unreadable, match="truncated"):
        load_recording(file)


def test_a_recording_cut_in_the_middle_of_a_line_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "cut.om"
    file.write_text('vllm:a{engine="0"} 1 10\nvllm:a{engine="0')
    with pytest.raises(Unreadable, match="line 2 is not metrics text"):
        load_recording(file)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "contains no samples"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not text|not metrics text"),
        (b"PK\x03\x04 a zip file", "not metrics text"),
        (b'{"status": "success"}', "not metrics text"),
        (b"time,value\n1,2\n", "not metrics text"),
        (b"<html></html>", "not metrics text"),
        (b"vllm:a 1\n", "without a time"),
        (b"vllm:a 1 1795000000000\n", "look like milliseconds"),
        (b"vllm:a 1 NaN\n", "timestamps are Unix seconds"),
        (b"vllm:a 1 -10\n", "at -10; timestamps are Unix seconds"),
        (b"vllm:a 1 1e308\n", "timestamps are Unix seconds"),
        (b"vllm:a 1 +Inf\n", "timestamps are Unix seconds"),
        (gzip.compress(b"\x00" * 100), "not metrics text"),
        (b"\x1f\x8b not really", "damaged or truncated"),
    ],
    ids=[
        "empty",
        "a picture",
        "a zip",
        "JSON",
        "CSV",
        "a web page",
        "one page",
        "milliseconds",
        "no time",
        "before 1970",
        "at no date",
        "never",
        "zipped zeros",
        "a false gzip",
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "file.om"
    file.write_bytes(content)
    with pytest.raises(Unreadable, match=says):
        load_recording(file)


def zipped(path: Path, lines: Iterator[bytes]) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.writelines(lines)
    return path


def peak_of(action: Callable[[], object]) -> int:
    """Bytes that were in use at most while `action` ran."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    file = zipped(tmp_path / "bomb.om.gz", (b"x" * 2**20 for _ in range(64)))

    def load() -> None:
        with pytest.raises(Unreadable, match="longer than"):
            load_recording(file)

    assert peak_of(load) < 4 * 2**20


def test_labels_that_never_repeat_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "MOST_SERIES", 100)
    file = zipped(tmp_path / "labels.om.gz", (b'vllm:a{id="%d"} 1 10\n' % number for number in range(1000)))
    with pytest.raises(Unreadable, match="a label of vllm:a has unbounded values"):
        load_recording(file)


def test_huge_label_sets_are_refused_before_they_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "MOST_LABEL_TEXT", 2**17)
    wide = ",".join(f'label{index}="{"v" * 500}"' for index in range(100))
    lines = (f'vllm:a{{{wide},id="{number}"}} 1 10\n'.encode() for number in range(1000))
    file = zipped(tmp_path / "wide.om.gz", lines)

    def load() -> None:
        with pytest.raises(Unreadable, match="very long labels"):
            load_recording(file)

    assert peak_of(load) < 8 * 2**20


def test_too_many_samples_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "MOST_SAMPLES", 1000)
    file = zipped(tmp_path / "long.om.gz", (b"vllm:a 1 %d\n" % time for time in range(2000)))
    with pytest.raises(Unreadable, match="more than 1,000 samples"):
        load_recording(file)


def test_an_endless_stream_of_samples_is_read_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_text, "MOST_KNOWN", 100)

    def lines() -> Iterator[str]:
        for number in range(5_000):
            yield f'vllm:a{{id="{number}",filler="{"f" * 200}"}} 1'

    assert peak_of(lambda: deque(read_samples(lines()), maxlen=0)) < 2**20


def test_unknown_metrics_are_kept_and_harm_nothing(tmp_path: Path) -> None:
    file = tmp_path / "other.om"
    file.write_text("node_load1 1 10\nvllm:from_the_future 1 10\nvllm:num_requests_running 1 10\n# EOF\n")
    assert load_recording(file).names == {"node_load1", "vllm:from_the_future", "vllm:num_requests_running"}


@pytest.mark.parametrize("zipped_too", [False, True])
def test_a_recording_is_read_from_a_pipe(tmp_path: Path, zipped_too: bool) -> None:
    pipe, text = tmp_path / "pipe", b'vllm:num_requests_running{engine="0"} 1 1795000000\n'
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(text) if zipped_too else text,))
    writer.start()
    recording = load_recording(pipe)
    writer.join()
    assert recording.first == recording.last == 1795000000
