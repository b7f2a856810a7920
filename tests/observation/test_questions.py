"""The PromQL is golden: a change to it changes what a whole fleet asks of its Prometheus."""

import pytest

from vllm_autotuner.observation.questions import Beside, Buckets, Growths, Means, Question, Samples, promql


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        pytest.param(
            Samples(names=("vllm:num_requests_running", "vllm:kv_cache_usage_perc"), window=300),
            '{__name__=~"vllm:num_requests_running|vllm:kv_cache_usage_perc"}[300s]',
            id="raw samples",
        ),
        pytest.param(
            Buckets(names=("vllm:time_to_first_token_seconds",), window=30),
            "sum by (namespace, pod, instance, engine, le) (increase(vllm:time_to_first_token_seconds_bucket[30s]))",
            id="buckets",
        ),
        pytest.param(
            Buckets(names=("new", "old"), window=30),
            "sum by (namespace, pod, instance, engine, le) (increase(new_bucket[30s]))"
            " or sum by (namespace, pod, instance, engine, le) (increase(old_bucket[30s]))",
            id="the newest name first, the older one where an engine lacks it",
        ),
        pytest.param(
            Means(name="vllm:num_requests_running", window=1800, step=30),
            "avg_over_time(vllm:num_requests_running[30s])[1800s:30s]",
            id="means",
        ),
        pytest.param(
            Growths(names=("new_sum", "old_sum"), window=1800, step=30),
            "(sum by (namespace, pod, instance, engine) (increase(new_sum[30s]))"
            " or sum by (namespace, pod, instance, engine) (increase(old_sum[30s])))[1800s:30s]",
            id="growths",
        ),
        pytest.param(
            Beside(name="process_start_time_seconds", anchor="vllm:num_requests_running"),
            "process_start_time_seconds and on (namespace, pod, instance) vllm:num_requests_running",
            id="what everybody exports, only where an engine does",
        ),
    ],
)
def test_promql(question: Question, expected: str) -> None:
    assert promql(question) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Samples(names=("a",), window=30), '{__name__=~"a",namespace=~"chat|search"}[30s]'),
        (
            Buckets(names=("a",), window=30),
            'sum by (namespace, pod, instance, engine, le) (increase(a_bucket{namespace=~"chat|search"}[30s]))',
        ),
        (
            Means(name="a", window=60, step=30),
            'avg_over_time(a{namespace=~"chat|search"}[30s])[60s:30s]',
        ),
        (
            Growths(names=("a",), window=60, step=30),
            '(sum by (namespace, pod, instance, engine) (increase(a{namespace=~"chat|search"}[30s])))[60s:30s]',
        ),
        (
            Beside(name="a", anchor="b"),
            'a{namespace=~"chat|search"} and on (namespace, pod, instance) b{namespace=~"chat|search"}',
        ),
    ],
    ids=["raw samples", "buckets", "means", "growths", "beside"],
)
def test_namespaces_are_named_where_only_they_matter(question: Question, expected: str) -> None:
    assert promql(question, namespaces=("chat", "search")) == expected
