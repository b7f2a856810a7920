"""Label matchers as people write them, and in every query."""

import pytest

from vllm_autotuner.observation.label_matchers import matcher, selector
from vllm_autotuner.observation.questions import Beside, Buckets, Growths, Means, Question, Samples, census, promql

EU = ('cluster="eu"',)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("cluster=eu", 'cluster="eu"'),
        ("cluster!=eu", 'cluster!="eu"'),
        ("cluster=~eu|us", 'cluster=~"eu|us"'),
        ("cluster!~test-.*", 'cluster!~"test-.*"'),
        ('cluster="eu"', 'cluster="eu"'),
        (" cluster = eu ".replace(" = ", "="), 'cluster="eu"'),
        ("cluster=", 'cluster=""'),
        ('team=a"b\\c', 'team="a\\"b\\\\c"'),
        ("team=Grün", 'team="Grün"'),
        ('x=a"} or vector(1) or y{z="', 'x="a\\"} or vector(1) or y{z=\\""'),
    ],
)
def test_a_matcher_is_quoted(written: str, expected: str) -> None:
    assert matcher(written) == expected


@pytest.mark.parametrize("written", ["", "cluster", "=eu", "1a=b", "a-b=c", "__name__=up", 'a{b="c"}=d', "a b=c"])
def test_what_is_no_matcher_is_refused_with_what_to_write(written: str) -> None:
    with pytest.raises(ValueError, match="write LABEL=VALUE, LABEL!=VALUE"):
        matcher(written)


def test_a_selector_of_nothing_is_nothing() -> None:
    assert selector() == selector("", match=()) == ""
    assert selector("", 'a="b"', match=EU) == '{a="b",cluster="eu"}'


@pytest.mark.parametrize(
    "question",
    [
        Samples(names=("a", "b"), window=60),
        Buckets(names=("a", "b"), window=60),
        Means(name="a", window=60, step=30),
        Growths(names=("a", "b"), window=60, step=30),
        Beside(name="a", anchor="b"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_selector_of_every_question_is_narrowed(question: Question) -> None:
    for namespaces in ((), ("chat",)):
        text = promql(question, namespaces=namespaces, match=EU)
        # Each name of a metric stands before a selector of its own, or within the only one.
        assert text.count('cluster="eu"') == (1 if isinstance(question, Samples | Means) else 2)
        assert text.replace(',cluster="eu"', "").replace('{cluster="eu"}', "") == promql(
            question, namespaces=namespaces
        )


def test_the_census_is_narrowed() -> None:
    assert census(["a"], match=EU) == 'count by (namespace) ({__name__=~"vllm:.+",namespace=~"a",cluster="eu"})'
