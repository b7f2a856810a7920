import gzip
from pathlib import Path

import pytest

from vllm_autotuner.observation.errors import Unreadable
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.questions import Buckets, Growths, Means, Samples
from vllm_autotuner.observation.recording import Recording, load_recording
from vllm_autotuner.observation.series import Series

RECORDINGS = Path(__file__).parents[1] / "data" / "vllm-0.32" / "recordings"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def recorded(tmp_path: Path, *lines: str) -> Recording:
    return load_recording(written(tmp_path / "a.om", "\n".join((*lines, "# EOF", ""))))


def test_reads_a_real_recording_plain_and_packed(tmp_path: Path) -> None:
    packed = load_recording(RECORDINGS / "healthy.om.gz")
    plain = tmp_path / "healthy.om"
    plain.write_bytes(gzip.decompress((RECORDINGS / "healthy.om.gz").read_bytes()))
    assert load_recording(plain).names == packed.names
    assert packed.first == pytest.approx(1795212150.054)
    assert packed.last - packed.first == pytest.approx(180.2, abs=0.05)


def broken(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    whole = (RECORDINGS / "healthy.om.gz").read_bytes()
    truncated, corrupt = tmp_path / "truncated.om.gz", tmp_path / "corrupt.om.gz"
    truncated.write_bytes(whole[: len(whole) // 2])
    corrupt.write_bytes(whole[:-8] + bytes(8))
    binary = tmp_path / "picture.om"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe" + bytes(range(256)))
    endless = tmp_path / "endless.om"
    endless.write_text("a" * 1_000_000)
    return {
        "missing": (tmp_path / "nothing.om", "does not exist"),
        "a folder": (tmp_path, "cannot read"),
        "empty": (written(tmp_path / "empty.om", ""), "contains no samples"),
        "only comments": (written(tmp_path / "comments.om", "# TYPE a gauge\n# EOF\n"), "contains no samples"),
        "truncated": (truncated, "damaged or truncated gzip"),
        "corrupt": (corrupt, "damaged or truncated gzip"),
        "binary": (binary, "is not text"),
        "no line ends": (endless, "longer than"),
        "JSON": (written(tmp_path / "a.json", '{"a": 1}\n'), "a.json: line 1 is not metrics text"),
        "no times": (written(tmp_path / "page.txt", "vllm:num_requests_running 1\n"), "use --metrics URL instead"),
    }


CASES = [
    "missing",
    "a folder",
    "empty",
    "only comments",
    "truncated",
    "corrupt",
    "binary",
    "no line ends",
    "JSON",
    "no times",
]


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_is_no_recording_is_refused_by_name(tmp_path: Path, case: str) -> None:
    path, says = broken(tmp_path)[case]
    with pytest.raises(Unreadable, match=says) as caught:
        load_recording(path)
    assert len(str(caught.value).splitlines()) == 1


async def test_samples_out_of_order_are_sorted(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "a 3 30", "a 1 10", "a 2 20")
    (series,) = await recording.ask(Samples(names=("a",), window=100), at=40)
    assert (series.times, series.values) == ([10, 20, 30], [1, 2, 3])


async def test_scrapes_may_be_added_between_questions(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "a 1 10")
    more = recorded(tmp_path, "a 2 5")
    assert await recording.ask(Samples(names=("a",), window=100), at=40)
    for name in more.names:
        (series,) = await more.ask(Samples(names=(name,), window=100), at=40)
        assert series.times == [5]


async def test_raw_samples_are_those_of_the_window(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "a 1 10", "a 2 20", "a 3 30", "b 9 1")
    (series,) = await recording.ask(Samples(names=("a", "b", "c"), window=15), at=30)
    assert series == Series(labels={"__name__": "a"}, times=[20, 30], values=[2, 3])


async def test_buckets_are_summed_per_engine_and_edge(tmp_path: Path) -> None:
    lines = [
        f'h_bucket{{pod="{pod}",le="{edge}",model_name="{model}"}} {value + time} {time}'
        for pod, model in (("a", "m"), ("a", "n"), ("b", "m"))
        for edge, value in (("1.0", 100), ("+Inf", 200))
        for time in (5, 15, 25, 35)
    ]
    answer = await recorded(tmp_path, *lines).ask(Buckets(names=("h",), window=40), at=40)
    # Each grew 30 in the 30 s between the samples, so 40 in 40 s; pod a has two models.
    found = {(one.labels["pod"], one.labels["le"]): one.values[0] for one in answer}
    assert found == pytest.approx({("a", "1.0"): 80, ("a", "+Inf"): 80, ("b", "1.0"): 40, ("b", "+Inf"): 40})


async def test_the_newest_name_wins_per_engine(tmp_path: Path) -> None:
    lines = [
        f'{name}_bucket{{pod="{pod}",le="+Inf"}} {100 + factor * time} {time}'
        for name, pod, factor in (("new", "a", 1), ("old", "a", 5), ("old", "b", 2))
        for time in (5, 15, 25, 35)
    ]
    answer = await recorded(tmp_path, *lines).ask(Buckets(names=("new", "old"), window=40), at=40)
    assert {one.labels["pod"]: one.values[0] for one in answer} == pytest.approx({"a": 40, "b": 80})


async def test_means_and_growths_are_taken_at_multiples_of_the_step_as_subqueries_do(tmp_path: Path) -> None:
    lines = [f"{name} {time} {time}" for name in ("g", "c") for time in range(1, 61, 2)]
    recording = recorded(tmp_path, *lines)
    (means,) = await recording.ask(Means(name="g", window=40, step=20), at=50)
    # 20 < t <= 40 holds 21 to 39; the window (10, 50] holds the multiples 20 and 40.
    assert (means.times, means.values) == ([20, 40], [10, 30])
    (growths,) = await recording.ask(Growths(names=("c",), window=40, step=20), at=50)
    assert growths.times == [20, 40]
    assert growths.values == pytest.approx([20, 20])


async def test_what_is_not_recorded_is_no_answer_and_no_zero(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "a 1 10")
    for question in (
        Samples(names=("x",), window=30),
        Buckets(names=("x",), window=30),
        Means(name="x", window=30, step=10),
        Growths(names=("x",), window=30, step=10),
    ):
        assert list(await recording.ask(question, at=20)) == []


def test_forgets_what_is_old_and_series_that_are_only_old(tmp_path: Path) -> None:
    recording = recorded(tmp_path, 'a{pod="gone"} 1 10', 'a{pod="here"} 1 10', 'a{pod="here"} 2 20', "b 5 10")
    recording.forget(before=20)
    assert recording.names == {"a"}
    assert recording.first == recording.last == 20
    recording.forget(before=21)
    assert recording.names == frozenset()


async def test_what_is_kept_answers_as_before(tmp_path: Path) -> None:
    lines = [f'a_total{{pod="p"}} {at * 2} {at}' for at in range(0, 100, 10)]
    whole, cut = recorded(tmp_path, *lines), recorded(tmp_path, *lines)
    cut.forget(before=50)
    question = Growths(names=("a_total",), window=30, step=30)
    assert await cut.ask(question, at=90) == await whole.ask(question, at=90) != []


async def test_growth_at_moments_that_have_passed_is_what_it_would_be_anew() -> None:
    question = Growths(names=("c_total",), window=60, step=10)
    looked, late = Recording(), Sample("c_total", (("pod", "b"),), 500.0, None)
    for time in range(0, 130, 5):
        looked.add(Sample("c_total", (("pod", "a"),), float(time), None), time=float(time))
        asked = await looked.ask(question, at=float(time))
        anew = Recording()
        for before in range(0, time + 1, 5):
            anew.add(Sample("c_total", (("pod", "a"),), float(before), None), time=float(before))
        assert asked == await anew.ask(question, at=float(time))
    for when in (81.0, 84.0, 89.0):
        looked.add(late, time=when)
    pods = [one.labels.get("pod") for one in await looked.ask(question, at=125.0)]
    assert pods == ["a", "b"], "what comes late is told as well"
