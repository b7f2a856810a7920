"""What is kept from look to look is what one whole question would be answered with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.questions import Means, Samples
from vllm_autotuner.observation.series_memory import OVERLAP, Remembered, SeriesMemory

QUESTION: Final = Samples(names=("vllm:a",), window=300)
NAMESPACES: Final = ("a", "b")
Known: TypeAlias = tuple[str, str, list[float], list[float]]
"""Namespace, pod, times and values of a series."""


@dataclass(slots=True)
class Store:
    """A Prometheus: each sample can be seen from some time on, in any order."""

    samples: dict[tuple[str, str], list[tuple[float, float, float]]] = field(default_factory=dict)
    """Namespace and pod -> time, value, when it can be seen."""
    asked: list[tuple[tuple[str, ...], int]] = field(default_factory=list)

    def scrape(self, namespace: str, pod: str, *, time: float, value: float, seen: float) -> None:
        known = self.samples.setdefault((namespace, pod), [])
        if known and time <= known[-1][0]:
            return
        known.append((time, value, seen))

    def answer(
        self, namespaces: Sequence[str], *, at: float, window: float
    ) -> Mapping[bytes, list[tuple[float, float]]]:
        self.asked.append((tuple(namespaces), round(window)))
        found = {}
        for (namespace, pod), samples in self.samples.items():
            points = [(time, value) for time, value, seen in samples if seen <= at and at - window < time <= at]
            if namespace in namespaces and points:
                found[msgspec.json.encode({"namespace": namespace, "pod": pod})] = points
        return found


def look(memory: SeriesMemory, store: Store, *, at: float, namespaces: Sequence[str] = NAMESPACES) -> list[Known]:
    """Ask as an operator does, and return what is known then."""
    whole = memory.unknown(namespaces, at=at)
    if known := [each for each in namespaces if each not in whole]:
        read(memory, store, memory.begin_new(known, at=at), known, at=at)
        memory.cover(known, at=at, whole=False)
        whole += memory.gaps()
    if whole:
        read(memory, store, memory.begin_whole(whole, at=at), whole, at=at)
        memory.cover(whole, at=at, whole=True)
    found = memory.answer(namespaces, at=at)
    return sorted((one.labels["namespace"], one.labels["pod"], [*one.times], [*one.values]) for one in found)


def read(memory: SeriesMemory, store: Store, question: Remembered, namespaces: Sequence[str], *, at: float) -> None:
    for text, points in store.answer(namespaces, at=at, window=question.window).items():
        memory.take(text, memory.labels_of(text) or msgspec.json.decode(text), points)


def whole(store: Store, *, at: float, namespaces: Sequence[str] = NAMESPACES) -> list[Known]:
    found = store.answer(namespaces, at=at, window=QUESTION.window)
    labelled = [(msgspec.json.decode(text), points) for text, points in found.items()]
    return sorted(
        (labels["namespace"], labels["pod"], [time for time, _ in points], [value for _, value in points])
        for labels, points in labelled
    )


def scraped(store: Store, *, until: float, since: float = 0.0, every: float = 15.0, namespace: str = "a") -> None:
    time = since
    while time <= until:
        store.scrape(namespace, "p", time=time, value=time, seen=time)
        time += every


scrapes = st.tuples(
    st.sampled_from(NAMESPACES),
    st.sampled_from(("p", "q")),
    st.floats(0, 900),
    st.integers(0, 9),
    st.one_of(st.just(0.0), st.floats(0, OVERLAP)),
)


@given(st.lists(scrapes, max_size=60), st.lists(st.floats(1, 200), min_size=1, max_size=12), st.data())
def test_any_looks_gaps_restarts_and_late_samples_give_what_one_whole_question_would(
    found: list[tuple[str, str, float, int, float]], gaps: list[float], data: st.DataObject
) -> None:
    """In whatever order they can be seen, as long as each can be seen after a minute."""
    store, memory, at = Store(), SeriesMemory(QUESTION), 0.0
    for namespace, pod, time, value, late in sorted(found, key=lambda each: each[2]):
        store.scrape(namespace, pod, time=round(time, 3), value=float(value), seen=time + late)
    for gap in gaps:
        at += gap
        if data.draw(st.integers(0, 9)) == 0:
            memory = SeriesMemory(QUESTION)  # a restart
        assert look(memory, store, at=at) == whole(store, at=at)


def test_what_was_held_back_for_minutes_is_known_with_the_first_sample_that_is_not() -> None:
    """As after an outage between Prometheus and its store: everything arrives at once, in its order."""
    store, memory = Store(), SeriesMemory(QUESTION)
    scraped(store, until=100)
    for time in range(105, 300, 15):
        store.scrape("a", "p", time=time, value=1.0, seen=301.0)
        store.scrape("b", "new", time=time, value=1.0, seen=301.0)
    for at in (101.0, 161.0, 221.0, 281.0, 296.0, 311.0):
        found = look(memory, store, at=at)
    assert found == whole(store, at=311.0)


def test_a_look_asks_only_for_what_is_new() -> None:
    store, memory = Store(), SeriesMemory(QUESTION)
    scraped(store, until=400)
    look(memory, store, at=301.0, namespaces=["a"])
    store.asked.clear()
    assert look(memory, store, at=316.0, namespaces=["a"]) == whole(store, at=316.0, namespaces=["a"])
    assert store.asked[0] == (("a",), round(15 + OVERLAP) + 2)


def test_a_look_that_failed_is_made_good_by_the_next_one() -> None:
    store, memory = Store(), SeriesMemory(QUESTION)
    scraped(store, until=400)
    look(memory, store, at=301.0, namespaces=["a"])
    memory.begin_new(["a"], at=316.0)  # its answer never came
    assert look(memory, store, at=331.0, namespaces=["a"]) == whole(store, at=331.0, namespaces=["a"])


def test_a_namespace_that_is_new_is_asked_about_in_whole_and_no_other() -> None:
    store, memory = Store(), SeriesMemory(QUESTION)
    scraped(store, until=400)
    scraped(store, until=400, namespace="b")
    look(memory, store, at=301.0, namespaces=["a"])
    store.asked.clear()
    look(memory, store, at=316.0)
    assert store.asked == [(("a",), 77), (("b",), 300)]


def test_series_of_one_target_keep_their_times_once() -> None:
    store, memory = Store(), SeriesMemory(QUESTION)
    for pod in ("p", "q"):
        for time in range(0, 400, 15):
            store.scrape("a", pod, time=time, value=float(time), seen=time)
    for at in (301.0, 316.0, 331.0):
        look(memory, store, at=at, namespaces=["a"])
        one, other = memory._series["a"].values()
        assert one.times is other.times
        assert not memory._times, "of a look that has ended nothing else is kept"


def test_a_series_is_one_in_whatever_order_its_labels_are_written() -> None:
    """Behind one address two servers may answer in turn."""
    memory = SeriesMemory(QUESTION)
    memory.begin_whole(["a"], at=100.0)
    labels = {"__name__": "vllm:a", "namespace": "a", "pod": "p-\u00e9"}
    for time, names in enumerate(([*labels], [*labels][::-1], [*labels])):
        written = {name: labels[name] for name in names}
        text = json.dumps(written, separators=(",", ":"), ensure_ascii=False).encode()
        assert memory.labels_of(text) == (labels if time == 2 else None)
        memory.take(text, written, [(50.0 + time, 1.0)])
    memory.cover(["a"], at=100.0, whole=True)
    (found,) = memory.answer(["a"], at=100.0)
    assert [*found.times] == [50.0, 51.0, 52.0]


def test_what_is_kept_is_forgotten_with_its_namespace_and_with_time() -> None:
    store, memory = Store(), SeriesMemory(QUESTION)
    scraped(store, until=100)
    scraped(store, until=100, namespace="b")
    look(memory, store, at=101.0)
    memory.keep_only(["b"])
    assert {one.labels["namespace"] for one in memory.answer(NAMESPACES, at=101.0)} == {"b"}
    assert memory.answer(NAMESPACES, at=401.0) == []
    assert not memory._series
    assert not memory._places


def test_a_mean_is_asked_for_again_until_its_samples_must_have_come() -> None:
    """A mean at an edge that was told before a scrape had been stored is another one later."""
    memory = SeriesMemory(Means(name="vllm:a", window=1800, step=60))
    text, labels = b'{"namespace":"a"}', {"namespace": "a"}
    memory.begin_whole(["a"], at=600.0)
    memory.take(text, labels, [(480.0, 1.0), (540.0, 2.0), (600.0, 5.0)])
    memory.cover(["a"], at=600.0, whole=True)
    narrow = memory.begin_new(["a"], at=615.0)
    assert narrow.window == 15 + 60 + 2 * 60
    memory.take(text, labels, [(480.0, 1.0), (540.0, 2.0), (600.0, 4.0)])
    (one,) = memory.answer(["a"], at=615.0)
    assert ([*one.times], [*one.values]) == ([480.0, 540.0, 600.0], [1.0, 2.0, 4.0])
