"""Each namespace is in the part of exactly one shard, and limits hold for all shards together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control.loop_bed import service_body

from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.control.shard import WHOLE, Shard, parse_shard
from vllm_autotuner.guardrails.concurrency import Share
from vllm_autotuner.observation.prometheus import PrometheusAddress


@given(st.text(max_size=63), st.integers(1, 100))
def test_exactly_one_shard_has_a_namespace(namespace: str, many: int) -> None:
    assert sum(Shard(number, many).has(namespace) for number in range(many)) == 1


def test_namespaces_are_spread_over_the_shards() -> None:
    names = [f"team-{number}" for number in range(1000)]
    sizes = [sum(Shard(number, 5).has(name) for name in names) for number in range(5)]
    assert all(150 <= size <= 250 for size in sizes), sizes


def test_the_whole_has_everything_and_a_lease_of_the_plain_name() -> None:
    assert WHOLE.has("anything")
    assert WHOLE.named("vllm-autotuner") == "vllm-autotuner"
    assert [Shard(number, 2).named("vllm-autotuner") for number in range(2)] == ["vllm-autotuner-0", "vllm-autotuner-1"]


@pytest.mark.parametrize("text", ["", "1", "3/3", "-1/3", "1/0", "a/b", "0/3/1", "0/1000", "\u0661/3"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write NUMBER/OF"):
        parse_shard(text)


def test_a_shard_is_read() -> None:
    assert parse_shard("2/3") == Shard(2, 3)


def body(namespace: str, *, version: str = "1") -> dict[str, object]:
    found = service_body("chat")
    return {**found, "metadata": {**found["metadata"], "namespace": namespace, "resourceVersion": version}}


def test_nothing_is_known_of_the_namespaces_of_others() -> None:
    shards = [Shard(number, 3) for number in range(3)]
    registries = [Registry(has=shard.has) for shard in shards]
    for registry in registries:
        for number in range(30):
            registry.services.see(body(f"team-{number}"))
    known = [set(registry.snapshot().services) for registry in registries]
    assert sorted(key for keys in known for key in keys) == sorted(
        Key(f"team-{number}", "chat") for number in range(30)
    )
    assert not known[0] & known[1]


def settings(shard: Shard, *, changes: Share) -> OperatorSettings:
    return OperatorSettings(
        prometheus=PrometheusAddress(url="http://prometheus"), identity="test_1", shard=shard, changes_at_once=changes
    )


@given(st.integers(1, 200), st.integers(1, 50))
def test_the_parts_of_a_limit_are_no_more_than_the_limit(number: int, many: int) -> None:
    if number < many:
        with pytest.raises(ValueError, match=f"at least {many}"):
            Share(number=number).among(many)
        return
    part = Share(number=number).among(many).of(10**6)
    assert 1 <= part * many <= number


def test_a_limit_that_cannot_be_divided_is_refused_before_anything_starts() -> None:
    with pytest.raises(
        ValueError, match="limit of changes has to be divided among the shards: 2 is not one for each of 3"
    ):
        settings(Shard(0, 3), changes=Share(number=2))
    assert settings(Shard(0, 3), changes=Share(percent=5)).changes_at_once.among(3).of(100) == 5
