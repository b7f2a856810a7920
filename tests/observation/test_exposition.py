import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.errors import Unreadable
from vllm_autotuner.observation.metrics_text import LONGEST_LINE, Sample, read_samples

PAGE = Path(__file__).parents[1] / "data" / "vllm-0.32" / "metrics.txt"


def read(*lines: str) -> list[Sample]:
    return list(read_samples(lines))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("up 1", Sample("up", (), 1.0, None), id="no labels"),
        pytest.param("up{} 1", Sample("up", (), 1.0, None), id="empty labels"),
        pytest.param("  up  1  \n", Sample("up", (), 1.0, None), id="spaces around"),
        pytest.param("up 1 1795211087.5", Sample("up", (), 1.0, 1795211087.5), id="with a time"),
        pytest.param('a{b="c"} 2e3', Sample("a", (("b", "c"),), 2000.0, None), id="an exponent"),
        pytest.param('a{z="1",b="2",} 3', Sample("a", (("b", "2"), ("z", "1")), 3.0, None), id="labels are sorted"),
        pytest.param('a{b="x}y{z"} 1', Sample("a", (("b", "x}y{z"),), 1.0, None), id="braces in a value"),
        pytest.param('a{b="x,y=z"} 1', Sample("a", (("b", "x,y=z"),), 1.0, None), id="commas in a value"),
        pytest.param(r'a{b="x\"y"} 1', Sample("a", (("b", 'x"y'),), 1.0, None), id="an escaped quote"),
        pytest.param(r'a{b="x\\"} 1', Sample("a", (("b", "x\\"),), 1.0, None), id="an escaped backslash at the end"),
        pytest.param(r'a{b="x\ny"} 1', Sample("a", (("b", "x\ny"),), 1.0, None), id="an escaped line end"),
        pytest.param(r'a{b="x\dy"} 1', Sample("a", (("b", r"x\dy"),), 1.0, None), id="an unknown escape stays"),
        pytest.param('a{b="ü 語"} 1', Sample("a", (("b", "ü 語"),), 1.0, None), id="other scripts"),
        pytest.param('a{b = "c" , d="e"} 1', Sample("a", (("b", "c"), ("d", "e")), 1.0, None), id="spaces in labels"),
        pytest.param('a_bucket{le="+Inf"} 7', Sample("a_bucket", (("le", "+Inf"),), 7.0, None), id="the last bucket"),
        pytest.param(
            'a{b="c"} 5 1795211087 # {trace_id="x y"} 0.5 1795211087',
            Sample("a", (("b", "c"),), 5.0, 1795211087.0),
            id="an exemplar is left out",
        ),
        pytest.param('a{b="c # d"} 5', Sample("a", (("b", "c # d"),), 5.0, None), id="a hash in a value"),
        pytest.param("a +Inf", Sample("a", (), math.inf, None), id="infinity"),
    ],
)
def test_reads_a_line(line: str, expected: Sample) -> None:
    assert read(line) == [expected]


def test_nan_is_read_and_left_to_judge() -> None:
    (sample,) = read("a NaN")
    assert math.isnan(sample.value)


def test_comments_and_empty_lines_are_skipped() -> None:
    assert read("# HELP a x", "# TYPE a gauge", "", "   ", "# EOF") == []


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("<html><body>Not found</body></html>", id="HTML"),
        pytest.param('{"status": "success"}', id="JSON"),
        pytest.param("a", id="a name alone"),
        pytest.param("a one", id="no number"),
        pytest.param('a{b="c} 1', id="an open quote"),
        pytest.param('a{b="c" 1', id="an open brace"),
        pytest.param("a{b=c} 1", id="a value without quotes"),
        pytest.param('a{1b="c"} 1', id="a label that begins with a digit"),
        pytest.param('{b="c"} 1', id="no name"),
        pytest.param("a 1 2 3", id="four words"),
        pytest.param("a 1 yesterday", id="a time that is none"),
        pytest.param("a 1_000", id="a number of Python alone"),
        pytest.param("a 1 17_950", id="a time of Python alone"),
        pytest.param("a \u0661", id="digits of another script"),
    ],
)
def test_refuses_what_is_not_metrics_text_with_its_line(line: str) -> None:
    with pytest.raises(Unreadable, match="line 2 "):
        read("up 1", line)


def test_a_huge_line_is_refused_without_being_shown() -> None:
    with pytest.raises(Unreadable, match=f"longer than {LONGEST_LINE}") as caught:
        read("a" * (LONGEST_LINE + 1))
    assert len(str(caught.value)) < 200


def test_a_bad_line_is_shown_in_part() -> None:
    with pytest.raises(Unreadable) as caught:
        read("x" * 5000)
    assert len(str(caught.value)) < 200


def test_reads_the_page_of_a_real_engine() -> None:
    samples = list(read_samples(PAGE.read_text().splitlines()))
    assert len(samples) == 415
    (info,) = (sample for sample in samples if sample.name == "vllm:cache_config_info")
    assert dict(info.labels)["num_gpu_blocks"] == "256"


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        for sample in read_samples(text.split("\n")):
            assert sample.name
    except Unreadable:
        pass


@given(st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=50))
def test_a_label_value_comes_back_as_it_was_written(value: str) -> None:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    (sample,) = read(f'a{{b="{escaped}"}} 1')
    assert dict(sample.labels)["b"] == value
