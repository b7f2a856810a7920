"""Labels in two parts: as a dict to whoever reads them, and each part there once."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.series_labels import SharedLabels

NAMES = st.sampled_from(["__name__", "le", "finished_reason", "namespace", "pod", "instance", "x"]) | st.text(
    max_size=9
)
READ = st.dictionaries(NAMES, st.text(max_size=9))


@given(read=READ, asked=NAMES)
def test_they_read_as_the_dict_that_was_sent(read: Mapping[str, str], asked: str) -> None:
    labels = SharedLabels().labels(read, longest=20)
    assert labels == read
    assert dict(labels) == read
    assert len(labels) == len(read)
    assert labels.get(asked) == read.get(asked)
    assert labels.get(asked, "-") == read.get(asked, "-")
    assert (asked in labels) == (asked in read)


def test_a_label_that_is_not_there_is_an_error_as_in_a_dict() -> None:
    with pytest.raises(KeyError):
        SharedLabels().labels({"pod": "a"}, longest=20)["le"]


def test_names_and_texts_are_cut() -> None:
    assert SharedLabels().labels({"a" * 9: "b" * 9}, longest=4) == {"aaaa": "bbbb"}


def test_series_of_one_target_share_its_labels_and_those_of_one_metric_its_own() -> None:
    shared = SharedLabels()

    def read(pod: str, edge: str) -> Any:
        return shared.labels({"__name__": "vllm:x_bucket", "le": edge, "namespace": "a", "pod": pod}, longest=20)

    one, same_pod, same_edge = read("p0", "1"), read("p0", "2"), read("p1", "1")
    assert one._target is same_pod._target
    assert one._target is not same_edge._target
    assert one._metric is same_edge._metric
    assert one._metric is not same_pod._metric
