"""The stand-in for Prometheus sends what a real one sent, and the pages tell what was measured."""

import json
from typing import Any, Final

import pytest
from aiohttp.test_utils import TestClient, TestServer

from benchmarks.fleets.page import fleet, fleet_before, fleet_canary, fleet_shards, fleet_shards_others, fleet_troubles
from benchmarks.tenants.page import hostile, operator_cost
from benchmarks.tenants.shapes import NAMESPACE, POD, Shape, namespaces_of, shape_of
from benchmarks.tenants.stand_in import COUNT, StandIn, application
from vllm_autotuner.observation.answer_reader import AnswerReader
from vllm_autotuner.observation.questions import Beside, Buckets, Growths, Means, Question, Samples, census, promql

QUESTIONS: Final[tuple[Question, ...]] = (
    Samples(names=("vllm:a", "vllm:b"), window=300),
    Buckets(names=("vllm:a",), window=30),
    Means(name="vllm:a", window=1800, step=30),
    Growths(names=("vllm:a",), window=1800, step=30),
    Beside(name="process_start_time_seconds", anchor="vllm:a"),
)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: type(question).__name__)
def test_a_query_has_the_same_shape_whoever_is_asked_about(question: Question) -> None:
    alone, two = promql(question, namespaces=["a"]), promql(question, namespaces=["a", "b"])
    assert shape_of(alone) == shape_of(two) == shape_of(promql(question))
    assert (namespaces_of(alone), namespaces_of(two)) == (["a"], ["a", "b"])


def test_the_windows_of_a_query_are_no_part_of_its_shape() -> None:
    short, long = (Means(name="vllm:a", window=1800, step=step) for step in (30, 60))
    assert shape_of(promql(short)) == shape_of(promql(long))


@pytest.mark.parametrize(
    ("question", "kind", "samples"),
    [
        pytest.param(QUESTIONS[0], "matrix", 20, id="raw samples, scraped every 15 s"),
        pytest.param(QUESTIONS[1], "vector", 1, id="one value"),
        pytest.param(QUESTIONS[2], "matrix", 60, id="one for each step"),
        pytest.param(QUESTIONS[4], "vector", 1, id="the newest"),
    ],
)
def test_the_answer_about_an_engine_is_one_that_the_operator_reads(question: Question, kind: str, samples: int) -> None:
    labels = json.dumps({"__name__": "vllm:a", "namespace": NAMESPACE, "pod": POD})
    block = Shape(kind, ((labels, "4", 0.0),)).block(promql(question, namespaces=["a"]), at=1_795_000_007.0)
    reader = AnswerReader()
    reader.feed(f'{{"status":"success","data":{{"resultType":"{kind}","result":[{block}]}}}}'.encode())
    (series,) = reader.finish()[1]
    assert len(series.times) == samples
    assert set(series.values) == {4.0}
    assert 1_795_000_007.0 - 31 < series.times[-1] <= 1_795_000_007.0


def test_the_stand_in_counts_what_it_sends() -> None:
    shape = Shape("matrix", (("{}", "1", 0.0),) * 5)
    stand_in = StandIn({"a": shape, "b": shape})
    stand_in._pods = {"t-1": ["chat"], "t-2": ["chat", "code"]}
    assert census(["t-1", "t-2"]).startswith(COUNT)
    one, two = stand_in._census(namespaces_of(census(["t-1", "t-2"])), at=1.0)["data"]["result"]
    assert one == {"metric": {"namespace": "t-1"}, "value": [1.0, "10"]}
    assert two == {"metric": {"namespace": "t-2"}, "value": [1.0, "20"]}


async def test_the_stand_in_has_the_trouble_that_it_is_told() -> None:
    query = promql(QUESTIONS[0], namespaces=["a"])
    shape = Shape("matrix", ((json.dumps({"namespace": NAMESPACE, "pod": POD}), "1", 0.0),))
    async with TestClient(TestServer(application(StandIn({shape_of(query): shape})))) as client:

        async def asked() -> tuple[int, int]:
            answer = await client.post("/api/v1/query", data={"query": query, "time": "1795000007"})
            found = await answer.json()
            return answer.status, len(found["data"]["result"]) if answer.ok else 0

        await client.put("/tenants", json={"pods": {"a": ["chat"]}, "engines": 1})
        assert await asked() == (200, 1)
        await client.put("/trouble", json={"fails": 2})
        assert [await asked() for _ in range(3)] == [(503, 0), (200, 1), (503, 0)]
        await client.put("/trouble", json={"empty": True})
        assert await asked() == (200, 0)
        await client.put("/trouble", json={})
        assert await asked() == (200, 1)


def test_a_counter_grows_from_look_to_look_as_one_counter_does() -> None:
    shape = Shape("matrix", (('{"__name__":"vllm:a_total"}', "4", 2.0),))
    query = promql(QUESTIONS[0])
    earlier, later = (
        json.loads(f"[{shape.block(query, at=at)}]")[0]["values"] for at in (1_795_000_600.0, 1_795_000_617.0)
    )
    values = {time: float(value) for time, value in earlier}
    assert all(values[time] == float(value) for time, value in later if time in values)
    assert [float(value) for _, value in later] == sorted(float(value) for _, value in later)
    assert float(later[-1][1]) - float(later[0][1]) == pytest.approx(2.0 * (later[-1][0] - later[0][0]))


SUMMARY: Final = {
    "attacks": 1,
    "restarts": 0,
    "longest_tick_s": 16.0,
    "tick_limit_s": 15.0,
    "longest_loop_lag_s": 0.1,
    "peak_rss_mib": 100.0,
    "rss_limit_mib": 512.0,
    "honest_outcomes": ["Succeeded"],
    "faults": ["B1 is reported nowhere"],
    "series_of_an_engine_in_the_largest_answer": 40,
    "series_of_an_engine_in_all_answers": 200,
}


def row(**more: Any) -> dict[str, Any]:
    return {
        "attack": "B1",
        "what": "an object",
        "reported": {"B1": "Stalled: too deep"},
        "longest_tick_s": 16.0,
        "loop_lag_s": 0.1,
        "peak_rss_mib": 100.0,
        "restarts": 0,
        "honest": "Succeeded",
        "honest_seconds": 70.0,
    } | more


def test_a_target_that_is_missed_and_an_attack_that_was_not_met_are_told() -> None:
    lines = hostile({"summary": SUMMARY, "alone": [row()], "together": [row(attack="B1; B2", reported={})]})
    text = "\n".join(lines)
    assert "| longest tick, s (limit: the chart's interval) | 16 | 15 | **missed** |" in text
    assert "- B1 is reported nowhere" in text
    assert "| B1: an object | Stalled: too deep | 16.00 | 0.10 | 100 | 0 | Succeeded, in 70 s |" in text


def test_the_cost_of_each_cell_is_told() -> None:
    cell = {
        "tenants": 10,
        "series_per_tenant": 1000,
        "peak_rss_mib": 123.4,
        "cpu_s_per_minute": 4.56,
        "first_tick_s": 1.0,
        "longest_tick_s": 0.5,
        "loop_lag_s": 0.02,
        "tenants_with_metrics": 10,
    }
    text = "\n".join(operator_cost({"summary": SUMMARY, "cells": [cell]}))
    assert "| 10 | 1,000 | 123 | 4.6 | 1.0 | 0.5 | 0.02 | 10 |" in text
    assert "An engine has 40 series in the largest answer and 200 in all of them." in text


def test_the_cost_of_each_fleet_is_told() -> None:
    cell = {
        "services": 1000,
        "engines": 2000,
        "calm": 750.4,
        "cpu_s_per_tick": 2.345,
        "reference_loop_ms": 81.6,
        "cycle_s": 15.04,
        "longest_tick_s": 9.9,
        "peak_rss_mib": 321.0,
        "loop_lag_s": 0.25,
        "queries_per_tick": 64.0,
        "mib_per_tick": 40.0,
        "status_writes": 0,
        "ticks": 12,
        "status_for_all_s": 59.6,
        "change_goes_on_after_kill_s": 22.5,
        "first_tick_after_kill_s": 30.4,
        "troubles": [
            {
                "trouble": "no answer in time",
                "seconds": 600.0,
                "ticks": 8,
                "longest_tick_s": 12.34,
                "change_goes_on_s": 21.6,
                "status_writes": 1001,
                "blind": 1000,
                "seeing_again_s": 61.2,
                "leases_lost": 0,
                "peak_rss_mib": 330.0,
            }
        ],
        "api_troubles": [
            {
                "trouble": "each answer takes 2 s",
                "ticks": 7,
                "longest_tick_s": 15.2,
                "change_goes_on_s": 17.6,
                "status_writes": 3,
                "leases_lost": 0,
                "peak_rss_mib": 335.0,
            }
        ],
    }
    result = {"summary": {}, "cells": [cell]}
    text = "\n".join(fleet_troubles(result))
    assert "| 1,000 | each answer takes 2 s | 7 | 15.2 | 18 | 3 | no | 335 |" in text
    assert "| 1,000 | no answer in time | 10 | 8 | 12.3 | 22 | 1,001 | 1,000 | 61 | no | 330 |" in text
    row = "| 1,000 | 2,000 | 750 | 2.35 | 82 | 15.0 | 9.9 | 321 | 0.25 | 64.0 | 40.0 | 0 in 12 ticks | 60 | 22 | 30 |"
    assert row in text
    assert row in "\n".join(fleet(result))
    now = cell | {"operator": "now"}
    then = {name: value for name, value in now.items() if name != "reference_loop_ms"} | {"operator": "then"}
    text = "\n".join(fleet_before({"summary": {}, "cells": [then, now]}))
    assert f"| now {row}" in text
    assert "| then | 1,000 | 2,000 | 750 | 2.35 | not measured | 15.0 |" in text


def test_each_shard_of_a_fleet_has_a_row() -> None:
    shard = {
        "diagnoses": {"Healthy": 390.0, "Idle": 10.0},
        "cpu_s_per_tick": 0.456,
        "cycle_s": 15.04,
        "longest_tick_s": 1.26,
        "peak_rss_mib": 160.4,
        "start_peak_rss_mib": 150.6,
        "loop_lag_s": 0.111,
    }
    cell = {
        "services": 800,
        "engines": 1600,
        "status_for_all_s": 20.4,
        "reference_loop_ms": 99.6,
        "shards": [shard, shard | {"cycle_s": 16.0}],
    }
    text = "\n".join(fleet_shards({"summary": {}, "cells": [cell]}))
    assert "| 800 | 1,600 | 1 of 2 | 400 | 0.46 | 100 | 15.0 | 1.3 | 160 | 151 | 0.11 | 20 |" in text
    assert "| 800 | 1,600 | 2 of 2 | 400 | 0.46 | 100 | 16.0 | 1.3 | 160 | 151 | 0.11 | 20 |" in text
    alone = cell | {"number": 0, "of": 5, "shards": [shard]}
    text = "\n".join(fleet_shards_others({"summary": {}, "cells": [alone]}))
    assert "| 800 | 1,600 | 1 of 5 | 400 | 0.46 | 100 | 15.0 | 1.3 | 160 | 151 | 0.11 | 20 |" in text


def test_a_canary_has_a_row_alone_and_one_beside_each_fleet() -> None:
    alone = {
        "services": 0,
        "outcome": "Succeeded, maxNumSeqs 4 -> 8",
        "after_s": {"Provisioning": 0.0, "WarmingUp": 15.4, "Analyzing": 45.0, "Baking": 240.0, "over": 285.0},
        "lapses": [],
        "broken": [],
        "status_for_all_s": None,
    }
    undone = {"WarmingUp": 15.4, "Analyzing": 45.0, "over": 240.0}
    beside = alone | {"services": 1000, "after_s": undone, "lapses": ["no pod"], "status_for_all_s": 22.2}
    text = "\n".join(fleet_canary({"summary": {}, "cells": [alone, beside]}))
    assert "| 0 | Succeeded, maxNumSeqs 4 -> 8 | 15 | 45 | 240 | 285 | 0 | 0 | - |" in text
    assert "| 1,000 | Succeeded, maxNumSeqs 4 -> 8 | 15 | 45 | never | 240 | 1 | 0 | 22 |" in text
