"""However many series somebody exports: the event loop goes on, memory is bounded, and the others are read in full."""

import asyncio
import contextlib
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observation.fleet import GAUGES, NOW
from typing_extensions import override

from vllm_autotuner.control.read.metrics_sources import Within
from vllm_autotuner.observation.answer_reader import LEFT_OUT, Allowance, AnswerReader
from vllm_autotuner.observation.errors import TooLarge, Unusable
from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import EngineKey, WindowSettings, take_snapshot

RUNNING: Final = next(iter(GAUGES))


def entry(namespace: str, number: int = 0, *, samples: int = 3, **labels: str) -> str:
    metric = {"__name__": RUNNING, "namespace": namespace, "pod": f"p-{number}", "engine": "0", **labels}
    return json.dumps({"metric": metric, "values": [[NOW - step, "1"] for step in range(samples)]})


def document(*entries: str, before: str = '"status":"success","data":{"resultType":"matrix",') -> bytes:
    return f'{{{before}"result":[{",".join(entries)}]}}}}'.encode()


def read(body: bytes, *, parts: int = 1, most: int = 100) -> tuple[str, Sequence[Series]]:
    reader = AnswerReader(Allowance(most=most))
    size = max(1, len(body) // parts)
    for begin in range(0, len(body), size):
        reader.feed(body[begin : begin + size])
    return reader.finish()


def names(found: Sequence[Series]) -> list[str]:
    return sorted(f"{one.labels['namespace']}/{one.labels.get('pod', LEFT_OUT)}" for one in found)


@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_parts_of_any_size_are_one_answer(parts: int) -> None:
    text, found = read(document(*(entry("a", number, model='x"result":[') for number in range(9))), parts=parts)
    assert len(found) == 9
    assert found[0].labels["model"] == 'x"result":['
    assert json.loads(text) == {"status": "success", "data": {"resultType": "matrix", "result": []}}


def test_the_namespace_with_the_most_series_is_left_out_and_no_other() -> None:
    large = [entry("large", number) for number in range(200)]
    mixed = [entry("a", 0), *large[:50], entry("b", 0), *large[50:], entry("a", 1)]
    assert names(read(document(*mixed))[1]) == ["a/p-0", "a/p-1", "b/p-0", f"large/{LEFT_OUT}"]


def test_long_labels_and_many_samples_weigh_as_much_as_they_cost() -> None:
    long = [entry("long", number, text="x" * 100_000) for number in range(60)]
    assert names(read(document(entry("a"), *long))[1]) == ["a/p-0", f"long/{LEFT_OUT}"]
    many = [entry("many", number, samples=20_000) for number in range(10)]
    assert names(read(document(entry("a"), *many))[1]) == ["a/p-0", f"many/{LEFT_OUT}"]


def test_what_is_left_out_takes_no_memory() -> None:
    body = document(entry("a"), *(entry("large", number, samples=100) for number in range(3000)))
    tracemalloc.start()
    read(body, parts=len(body) // 10_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(body) / 4


@given(st.binary(max_size=300), st.integers(min_value=1, max_value=20))
def test_any_body_is_read_or_refused(body: bytes, parts: int) -> None:
    for each in (body, document() + body, document(before=body.decode(errors="replace"))):
        try:
            read(each, parts=parts)
        except Unusable:
            continue


KEYS = st.sampled_from(["metric", "values", "value", "histogram", "namespace", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=4),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=4),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=4))
def test_any_series_is_read_or_refused(values: list[Any]) -> None:
    with contextlib.suppress(Unusable):
        read(document(*(json.dumps(value) for value in values)))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"<html>" + b"x" * 3_000_000, id="a long page of something else"),
        pytest.param(document(entry("a")) + b"y" * 3_000_000, id="more than a document"),
        pytest.param(document("[" * 100_000), id="nested without an end"),
    ],
)
def test_what_is_no_answer_is_refused_in_little_time(body: bytes) -> None:
    before = time.process_time()
    with pytest.raises(Unusable):
        read(body, parts=50)
    assert time.process_time() - before < 2


def test_one_endless_series_takes_time_by_its_length_only() -> None:
    before = time.process_time()
    _, found = read(document(entry("a", text="x" * 30_000_000)), parts=300)
    assert len(found) == 1
    assert time.process_time() - before < 4


class Large(httpx.AsyncByteStream):
    """An answer of one hostile namespace beside an honest engine."""

    def __init__(self, series: int) -> None:
        self.series = series

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        tail = b"]}}"
        yield document(entry("demo")).removesuffix(tail)
        for begin in range(0, self.series, 1000):
            yield ("," + ",".join(entry("hostile", number) for number in range(begin, begin + 1000))).encode()
        yield tail


async def test_a_hostile_namespace_blocks_neither_the_loop_nor_its_neighbours() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raw = dict(httpx.QueryParams(request.content.decode()))["query"].startswith("{__name__")
        return httpx.Response(200, stream=Large(60_000)) if raw else httpx.Response(200, content=document())

    # Longer than any machine needs: how long it takes is not what is asked here.
    address = PrometheusAddress(url="http://prometheus:9090", timeout=timedelta(minutes=5))
    source = PrometheusSource(address, transport=httpx.MockTransport(answer))
    done = asyncio.Event()

    async def turns() -> int:
        count = 0
        while not done.is_set():
            await asyncio.sleep(0.01)
            count += 1
        return count

    watching = asyncio.create_task(turns())
    snapshot = await take_snapshot(source, at=NOW, settings=WindowSettings())
    done.set()
    await source.close()
    assert snapshot.error is None
    assert not snapshot.engines[EngineKey("demo", "p-0", "0")].unreadable
    assert await watching > 30, "parsed on the loop, nothing else has a turn meanwhile"


async def test_an_answer_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = PrometheusSource(
        PrometheusAddress(url="http://prometheus:9090"),
        transport=httpx.MockTransport(lambda request: httpx.Response(200, stream=Large(2_000_000))),
    )
    limit = "vllm_autotuner.observation.prometheus.ANSWER_BYTES"
    monkeypatch.setattr(limit, type("Small", (), {"limit": 2**20, "exceeded": staticmethod(lambda: None)}))
    with pytest.raises(TooLarge, match="sent more than 1 MiB") as refusal:
        await source.query("up", at=NOW)
    assert refusal.value.large == {"hostile"}, "nobody knows whom not to ask about, and everybody stays blind"
    await source.close()


async def test_a_namespace_that_makes_an_answer_late_is_known_and_not_asked_about_again() -> None:
    # Made beforehand: the time until the source gives up is for reading alone.
    begun = document(entry("demo"), *(entry("hostile", number) for number in range(30_000))).removesuffix(b"]}}")

    class Slow(Large):
        @override
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield begun
            await asyncio.sleep(600)

    source = PrometheusSource(
        PrometheusAddress(url="http://prometheus:9090", timeout=timedelta(seconds=6)),
        transport=httpx.MockTransport(lambda request: httpx.Response(200, stream=Slow(0))),
    )
    snapshot = await take_snapshot(source, at=NOW, settings=WindowSettings())
    await source.close()
    assert snapshot.error is not None
    assert snapshot.left_out == {"hostile"}


def test_no_namespace_stands_out_in_a_small_answer() -> None:
    allowance = Allowance()
    AnswerReader(allowance).feed(document(entry("a"), entry("a", 1), entry("b")))
    assert allowance.largest() == frozenset()


def test_what_is_large_over_several_answers_is_left_out_of_all_of_them() -> None:
    """Each answer of a look is held until the last one is there: a limit of each is no limit of the look."""
    allowance = Allowance(most=100)
    found = []
    for answer in range(4):
        reader = AnswerReader(allowance)
        reader.feed(document(entry("a"), *(entry("large", number) for number in range(40))))
        found.append(reader.finish()[1])
        assert sum(map(len, found)) <= 100 + 2 * answer
    assert [names(answer) for answer in found] == [["a/p-0"]] * 2 + [["a/p-0", f"large/{LEFT_OUT}"]] * 2


def test_a_look_that_ends_reads_no_more_of_any_answer() -> None:
    """What is left of them is not worth its time: the look begins anew without the namespace."""
    allowance = Allowance(most=100, ends=True)
    one, other = AnswerReader(allowance), AnswerReader(allowance)
    with pytest.raises(TooLarge) as refusal:
        one.feed(document(entry("a"), *(entry("large", number) for number in range(200))))
    assert refusal.value.large == {"large"}
    with pytest.raises(TooLarge):
        other.feed(document(entry("a")))


def test_samples_weigh_as_much_as_they_cost() -> None:
    """A target that is scraped every second has 300 samples of each series: five times the memory of one."""
    dense = [entry("dense", number, samples=300) for number in range(25)]
    assert names(read(document(entry("a"), *dense))[1]) == ["a/p-0", f"dense/{LEFT_OUT}"]
    assert len(read(document(*(entry("usual", number, samples=20) for number in range(99))))[1]) == 99


async def test_a_query_that_a_server_gives_up_names_whose_series_there_are_many_of() -> None:
    """A subquery over many series takes too long in the server; the first answer has shown whose they are."""

    def answer(request: httpx.Request) -> httpx.Response:
        query = dict(httpx.QueryParams(request.content.decode()))["query"]
        if query.startswith("{__name__"):
            return httpx.Response(200, stream=Large(20_000))
        return httpx.Response(503, json={"status": "error", "error": "query timed out in expression evaluation"})

    source = PrometheusSource(PrometheusAddress(url="http://prometheus:9090"), transport=httpx.MockTransport(answer))
    plenty = Allowance(most=80_000)
    look = Within(client=source, namespaces=("demo", "hostile"), first=plenty, others=plenty)
    snapshot = await take_snapshot(look, at=NOW, settings=WindowSettings())
    await source.close()
    assert snapshot.error is not None
    assert snapshot.left_out == {"hostile"}
