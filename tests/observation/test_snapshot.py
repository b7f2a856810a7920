import asyncio
from collections.abc import Sequence

import pytest
from tests.observation.fleet import GAUGES, NOW, RATES, Engine, fleet

from vllm_autotuner.engine.metric_names import Meaning
from vllm_autotuner.observation.errors import Overloaded, Rejected, SourceError, Unreachable, Unusable
from vllm_autotuner.observation.observation import Observation, observe
from vllm_autotuner.observation.questions import MetricsSource, Question, Samples
from vllm_autotuner.observation.reading import Absence, Measured, NoData
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import EngineKey, FleetSnapshot, WindowSettings, take_snapshot

RUNNING, WAITING, KV = GAUGES
BY_REASON = "vllm:num_requests_waiting_by_reason"


async def look(source: MetricsSource, *, at: float = NOW) -> FleetSnapshot:
    return await take_snapshot(source, at=at, settings=WindowSettings())


async def seen(*engines: Engine, at: float = NOW) -> Observation:
    snapshot = await look(fleet(*engines), at=at)
    return observe(snapshot, snapshot.engines)


class Counting:
    """Passes questions on and remembers them."""

    def __init__(self, source: MetricsSource) -> None:
        self.source = source
        self.asked: list[Question] = []

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        self.asked.append(question)
        return await self.source.ask(question, at=at)


class Failing:
    """Answers until the question number `fails`."""

    def __init__(self, error: SourceError, *, fails: int) -> None:
        self.error, self.left, self.source = error, fails, fleet(Engine())

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return await self.source.ask(question, at=at)


async def test_the_number_of_questions_does_not_depend_on_the_number_of_services() -> None:
    counts = []
    for services in (1, 40):
        source = Counting(fleet(*(Engine(pod=f"service-{number}-0", interval=15) for number in range(services))))
        snapshot = await look(source)
        assert len(snapshot.engines) == services
        counts.append(len(source.asked))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("fails", [0, 1, 5], ids=["at the first question", "at the second", "in the middle"])
@pytest.mark.parametrize("kind", [Unreachable, Overloaded, Rejected, Unusable])
async def test_a_failing_source_is_a_value_and_half_an_answer_is_none(kind: type[SourceError], fails: int) -> None:
    snapshot = await look(Failing(kind("the reason"), fails=fails))
    assert snapshot.error == NoData(Absence.PROVIDER_ERROR, "the reason")
    assert snapshot.engines == {}
    found = observe(snapshot, [EngineKey("demo", "chat-0", "0")])
    assert found.engines == ()
    assert found.problem is not None


async def test_an_error_of_our_own_is_not_hidden() -> None:
    class Broken:
        async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await look(Broken())


async def test_cancelling_is_not_a_failed_round() -> None:
    class Stuck:
        async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await look(Stuck())


@pytest.mark.parametrize(
    ("interval", "window", "scrapes"),
    [
        pytest.param(1, 30, 30, id="1 s: the usual window"),
        pytest.param(5, 30, 6, id="5 s: the usual window"),
        pytest.param(10, 40, 4, id="10 s: four scrapes"),
        pytest.param(15, 60, 4, id="15 s: four scrapes"),
        pytest.param(30, 120, 4, id="30 s: four scrapes"),
        pytest.param(60, 240, 4, id="60 s: four scrapes"),
    ],
)
async def test_the_window_stretches_with_the_scrape_interval(interval: int, window: int, scrapes: int) -> None:
    snapshot = await look(fleet(Engine(interval=interval)))
    (engine,) = observe(snapshot, snapshot.engines).engines
    assert (snapshot.scrape_interval, snapshot.state_window) == (interval, window)
    assert len(engine.moments) == scrapes


async def test_scrapes_that_come_some_milliseconds_late_stretch_no_window() -> None:
    late = [Engine(pod=f"chat-{number}", interval=15 + number / 1000, jitter=0.02) for number in range(4)]
    snapshot = await look(fleet(*late))
    assert {engine.window for engine in snapshot.engines.values()} == {60}


@pytest.mark.parametrize("intervals", [(15, 15), (15, 30), (15, 20, 30)])
async def test_the_load_of_pods_that_are_scraped_at_different_paces_is_that_of_all(intervals: Sequence[int]) -> None:
    pods = [Engine(pod=f"chat-{index}", interval=each, begin=NOW - 1900) for index, each in enumerate(intervals)]
    found = await seen(*pods)
    made, one_pod = found.tokens_by_window(over=600), RATES["vllm:generation_tokens_total"]
    assert len(made) >= 4
    loads = [tokens / found.window / len(pods) for tokens in made.values()]
    # The last window may be one that not all have told to its end.
    assert loads[:-1] == pytest.approx([one_pod] * len(loads[:-1]), rel=0.01)
    arrivals = list(found.arrivals_by_window().values())[:-1]
    assert arrivals == pytest.approx([arrivals[0]] * len(arrivals), rel=0.01), "steady, whatever the paces"


async def test_a_slow_engine_has_a_window_of_its_own_and_stretches_no_other() -> None:
    alone = observe(await look(fleet(Engine())), [EngineKey("demo", "chat-0", "0")])
    snapshot = await look(fleet(Engine(), Engine(pod="slow-0", interval=70)))
    assert snapshot.state_window == 30
    assert observe(snapshot, [EngineKey("demo", "chat-0", "0")]) == alone
    slow = observe(snapshot, [EngineKey("demo", "slow-0", "0")])
    assert slow.window == 280
    assert slow.finished_per_second == pytest.approx(2.0)
    assert slow.ttft.count == pytest.approx(2.0 * 210)
    both = observe(snapshot, snapshot.engines)
    assert both.window == 280
    assert both.finished_per_second == pytest.approx(4.0)


async def test_the_number_of_windows_is_bounded_and_rare_paces_share_the_longest() -> None:
    usual = [Engine(pod=f"usual-{number}", interval=15) for number in range(4)]
    other = [Engine(pod=f"other-{number}", interval=30) for number in range(2)]
    rare = [Engine(pod=f"rare-{interval}", interval=interval) for interval in (2, 20, 40, 50, 62)]
    source = Counting(fleet(*usual, *other, *rare))
    snapshot = await look(source)
    windows = {key.pod: observe(snapshot, [key]).window for key in snapshot.engines}
    assert {windows[f"usual-{number}"] for number in range(4)} == {60}
    assert {windows[f"other-{number}"] for number in range(2)} == {120}
    assert {name: windows[name] for name in ("rare-2", "rare-20", "rare-40", "rare-62")} == {
        "rare-2": 60,
        "rare-20": 120,
        "rare-40": 248,
        "rare-62": 248,
    }
    assert len(source.asked) == 6 + 10 * 3


async def test_a_target_that_comes_and_goes_does_not_stretch_the_window_of_the_fleet() -> None:
    snapshot = await look(fleet(Engine(), Engine(pod="flapping-0", interval=140)))
    assert (snapshot.scrape_interval, snapshot.state_window) == (2, 30)


async def test_an_engine_that_is_gone_does_not_stretch_the_window_of_the_fleet() -> None:
    gone = Engine(pod="gone-0", interval=12, begin=NOW - 124, end=NOW - 100)
    snapshot = await look(fleet(Engine(), gone))
    assert (snapshot.scrape_interval, snapshot.state_window) == (2, 30)


async def test_while_all_are_silent_their_last_pace_stays_the_window() -> None:
    snapshot = await look(fleet(Engine(interval=15, end=NOW - 100)))
    assert (snapshot.scrape_interval, snapshot.state_window) == (15, 60)


async def test_rates_do_not_depend_on_the_scrape_interval() -> None:
    for interval in (1, 5, 15, 60):
        found = await seen(Engine(interval=interval))
        assert found.finished_per_second == pytest.approx(2.0)
        assert found.arrivals_per_second == pytest.approx(2.0)
        assert found.generated_per_second == pytest.approx(200.0)
        assert found.prompted_per_second == pytest.approx(500.0)


async def test_a_growing_queue_counts_as_arrivals() -> None:
    found = await seen(Engine(gauges={WAITING: lambda time: 2000 + 3 * (time - NOW)}))
    assert found.arrivals_per_second == pytest.approx(5.0)
    assert found.finished_per_second == pytest.approx(2.0)


async def test_every_window_of_a_healthy_engine() -> None:
    found = await seen(Engine())
    (engine,) = found.engines
    assert engine.key == EngineKey("demo", "chat-0", "0")
    assert {(moment.running, moment.waiting, moment.kv) for moment in engine.moments} == {(4.0, 0.0, 0.5)}
    assert engine.preemptions == 0
    assert engine.finished == pytest.approx(56)
    assert engine.stalled_for == 0
    assert (engine.pool.blocks, engine.pool.block_size, engine.pool.tokens) == (100, 16, 1600)
    for distribution in (found.ttft, found.tpot, found.e2e, found.itl):
        mean, median = distribution.mean, distribution.quantile(0.5)
        assert isinstance(mean, Measured)
        assert isinstance(median, Measured)
        assert mean.value == pytest.approx(0.1)
        assert median.value == pytest.approx(0.1, rel=0.01)
    assert found.prompt_length.quantile(0.5) == found.output_length.quantile(0.5)
    assert {(point.running, round(point.itl, 6)) for point in found.steps} == {(4.0, 0.1)}
    assert {round(each.mean, 6) for each in found.first_tokens} == {0.1}
    assert [each.time for each in found.first_tokens] == [point.time for point in found.steps]


# --- versions ---------------------------------------------------------------------------------------------------------

OLD = Engine(
    pod="old-0",
    gauges={"vllm:gpu_cache_usage_perc": 0.25},
    rates={"vllm:time_per_output_token_seconds": 200.0},
    without=frozenset({KV, "vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds"}),
)


async def test_the_older_names_mean_the_same() -> None:
    found = await seen(OLD)
    assert {moment.kv for moment in found.engines[0].moments} == {0.25}
    assert isinstance(found.itl.mean, Measured)
    assert found.steps
    assert found.tpot.quantile(0.5) == NoData(Absence.NOT_EXPORTED, "TPOT is not exported")


async def test_old_and_new_engines_stand_side_by_side() -> None:
    found = await seen(OLD, Engine(pod="new-0"))
    assert {engine.key.pod: engine.moments[-1].kv for engine in found.engines} == {"old-0": 0.25, "new-0": 0.5}
    assert found.itl.count == pytest.approx(2 * 200 * 28)


async def test_where_both_names_are_exported_the_newer_wins() -> None:
    for order in ((KV, "vllm:gpu_cache_usage_perc"), ("vllm:gpu_cache_usage_perc", KV)):
        levels = {name: 0.9 if name == KV else 0.1 for name in order}
        found = await seen(Engine(gauges=levels, without=frozenset()))
        assert {moment.kv for moment in found.engines[0].moments} == {0.9}


async def test_a_deferred_queue_is_told_from_one_for_capacity() -> None:
    gauges = {WAITING: 7.0, f"{BY_REASON}{{capacity}}": 2.0, f"{BY_REASON}{{deferred}}": 5.0}
    (engine,) = (await seen(Engine(gauges=gauges))).engines
    assert {(moment.waiting, moment.deferred) for moment in engine.moments} == {(2.0, 5.0)}


async def test_without_reasons_all_that_wait_count() -> None:
    (engine,) = (await seen(Engine(gauges={WAITING: 7.0}))).engines
    assert {(moment.waiting, moment.deferred) for moment in engine.moments} == {(7.0, None)}


# --- missing is never zero --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "attribute"),
    [
        ("vllm:num_preemptions_total", "preemptions"),
        ("vllm:request_success_total", "finished"),
        ("vllm:prompt_tokens_total", "prompt_tokens"),
        ("vllm:generation_tokens_total", "generation_tokens"),
    ],
)
async def test_a_counter_that_is_not_exported_is_unknown(family: str, attribute: str) -> None:
    (engine,) = (await seen(Engine(without=frozenset({family})))).engines
    assert getattr(engine, attribute) is None


async def test_kv_usage_that_is_not_exported_is_unknown() -> None:
    (engine,) = (await seen(Engine(without=frozenset({KV})))).engines
    assert {moment.kv for moment in engine.moments} == {None}


async def test_without_token_counters_it_is_unknown_whether_it_stands_still() -> None:
    tokens = frozenset({"vllm:prompt_tokens_total", "vllm:generation_tokens_total"})
    (engine,) = (await seen(Engine(without=tokens))).engines
    assert engine.stalled_for is None


@pytest.mark.parametrize("family", [name for name in RATES if "_total" not in name])
async def test_a_histogram_that_is_not_exported_is_unknown(family: str) -> None:
    found = await seen(Engine(without=frozenset({family})))
    empty = [
        distribution
        for distribution in (
            found.ttft,
            found.itl,
            found.tpot,
            found.e2e,
            found.queue_time,
            found.prefill_time,
            found.decode_time,
            found.prompt_length,
            found.output_length,
        )
        if isinstance(distribution.quantile(0.5), NoData) and isinstance(distribution.mean, NoData)
    ]
    assert len(empty) >= 1
    assert all(one.missing for one in empty)


async def test_a_pool_that_is_not_exported_is_unknown() -> None:
    (engine,) = (await seen(Engine(without=frozenset({"vllm:cache_config_info"})))).engines
    assert (engine.pool.tokens, engine.pool.blocks) == (None, None)


@pytest.mark.parametrize(
    ("info", "tokens", "model_len"),
    [
        pytest.param({"kv_cache_size_tokens": "32768", "kv_cache_max_concurrency": "16.0"}, 32768, 2048, id="0.32"),
        pytest.param({"num_gpu_blocks": "256", "block_size": "128"}, 32768, None, id="before"),
        pytest.param({"num_gpu_blocks": "None", "block_size": "16"}, None, None, id="not resolved"),
        pytest.param({"kv_cache_size_tokens": "many"}, None, None, id="not a number"),
    ],
)
async def test_the_pool_is_read_from_labels(info: dict[str, str], tokens: int | None, model_len: int | None) -> None:
    (engine,) = (await seen(Engine(info=info))).engines
    assert (engine.pool.tokens, engine.pool.max_model_len) == (tokens, model_len)


@pytest.mark.parametrize(
    ("info", "given"),
    [
        pytest.param({"num_gpu_blocks_override": "40", "kv_cache_memory_bytes": "None"}, True, id="blocks"),
        pytest.param({"num_gpu_blocks_override": "None", "kv_cache_memory_bytes": "2147483648"}, True, id="bytes"),
        pytest.param({"num_gpu_blocks_override": "None", "kv_cache_memory_bytes": "None"}, False, id="by memory"),
        pytest.param({}, False, id="an older version"),
    ],
)
async def test_a_pool_that_flags_set_is_told_from_what_memory_leaves(info: dict[str, str], given: bool) -> None:
    (engine,) = (await seen(Engine(info={"num_gpu_blocks": "40", "block_size": "128", **info}))).engines
    assert engine.pool.given is given
    assert engine.pool.blocks_given is (info.get("num_gpu_blocks_override") == "40")


@pytest.mark.parametrize("missing", [RUNNING, WAITING], ids=["running", "waiting"])
async def test_an_engine_without_its_queue_is_silent_and_not_idle(missing: str) -> None:
    found = await seen(Engine(without=frozenset({missing})))
    assert (found.engines, found.silent) == ((), ("chat-0",))


@pytest.mark.fault("T12")
async def test_nan_is_no_level() -> None:
    def sometimes(time: float) -> float:
        return float("nan") if time % 4 == 0 else 4.0

    (engine,) = (await seen(Engine(gauges={RUNNING: sometimes, KV: float("nan")}))).engines
    assert len(engine.moments) == 7
    assert {(moment.running, moment.kv) for moment in engine.moments} == {(4.0, None)}


async def test_no_traffic_is_no_latency() -> None:
    found = await seen(Engine(rates=dict.fromkeys(RATES, 0.0)))
    for distribution in (found.ttft, found.tpot, found.itl):
        assert distribution.quantile(0.95) == NoData(Absence.NO_TRAFFIC, "no observations in this window")
        assert isinstance(distribution.mean, NoData)
    assert found.finished_per_second == 0


# --- who reports ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("T13")
@pytest.mark.parametrize(
    ("age", "interval", "fresh"),
    [
        pytest.param(5, 2, True, id="two scrapes missing"),
        pytest.param(7, 2, False, id="more than three scrapes missing"),
        pytest.param(40, 15, True, id="40 s is fresh at 15 s"),
        pytest.param(50, 15, False, id="50 s is stale at 15 s"),
    ],
)
async def test_a_stale_engine_is_silent(age: float, interval: float, fresh: bool) -> None:
    found = await seen(Engine(interval=interval, end=NOW - age, begin=NOW - 300))
    assert (len(found.engines), found.silent) == ((1, ()) if fresh else (0, ("chat-0",)))


async def test_an_engine_is_stale_by_its_own_pace_and_not_by_that_of_the_slowest() -> None:
    found = await seen(Engine(end=NOW - 30), Engine(pod="slow-0", interval=60))
    assert ([engine.key.pod for engine in found.engines], found.silent) == (["slow-0"], ("chat-0",))


@pytest.mark.fault("T16")
async def test_a_pod_that_was_expected_and_never_seen_is_named() -> None:
    snapshot = await look(fleet(Engine()))
    found = observe(snapshot, [EngineKey("demo", pod, "0") for pod in ("chat-0", "chat-1")], expected=2)
    assert [engine.key.pod for engine in found.engines] == ["chat-0"]
    assert (found.silent, found.expected) == (("chat-1",), 2)


@pytest.mark.fault("T16")
async def test_a_partial_scrape_leaves_the_others_fresh() -> None:
    found = await seen(Engine(pod="chat-0"), Engine(pod="chat-1", end=NOW - 60))
    assert ([engine.key.pod for engine in found.engines], found.silent) == (["chat-0"], ("chat-1",))
    assert found.finished_per_second == pytest.approx(2.0)


async def test_one_engine_that_does_not_tell_makes_the_sum_unknown() -> None:
    quiet = Engine(pod="chat-1", without=frozenset({"vllm:request_success_total"}))
    found = await seen(Engine(pod="chat-0"), quiet)
    assert found.finished_per_second is None
    assert found.arrivals_per_second is None


async def test_several_engines_of_one_pod_are_several() -> None:
    found = await seen(*(Engine(index=str(rank), gauges={RUNNING: float(rank)}) for rank in range(3)))
    assert [(one.key.pod, one.key.engine, one.moments[-1].running) for one in found.engines] == [
        ("chat-0", "0", 0.0),
        ("chat-0", "1", 1.0),
        ("chat-0", "2", 2.0),
    ]


async def test_equal_pod_names_in_two_namespaces_are_two() -> None:
    found = await seen(Engine(namespace="a"), Engine(namespace="b"))
    assert [engine.key.namespace for engine in found.engines] == ["a", "b"]


async def test_outside_kubernetes_the_address_tells_engines_apart() -> None:
    machines = [
        Engine(pod="", namespace="", labels={"instance": f"10.0.0.{number}:8000"}, gauges={RUNNING: float(number)})
        for number in (1, 2)
    ]
    found = await seen(*machines)
    assert {one.key.pod: one.moments[-1].running for one in found.engines} == {"10.0.0.1:8000": 1, "10.0.0.2:8000": 2}
    assert found.ttft.count == pytest.approx(2 * 2 * 28)
    assert len(found.steps) == 2 * len((await seen(machines[0])).steps)


@pytest.mark.fault("T14")
@pytest.mark.parametrize("order", [1, -1], ids=["the old series first", "the new series first"])
async def test_a_pod_that_came_back_under_another_address_is_read_by_its_newest_series(order: int) -> None:
    before = Engine(labels={"instance": "10.0.0.1:8000"}, end=NOW - 40, gauges={RUNNING: 9.0}, info={"block_size": "1"})
    after = Engine(labels={"instance": "10.0.0.2:8000"}, begin=NOW - 30, gauges={RUNNING: 4.0})
    found = await seen(*[before, after][::order])
    (engine,) = found.engines
    assert {moment.running for moment in engine.moments} == {4.0}
    assert engine.pool.block_size == 16
    assert found.silent == ()


async def test_an_engine_that_was_deleted_long_ago_reports_nothing_and_hides_nothing() -> None:
    gone = Engine(pod="gone-0", begin=NOW - 1700, end=NOW - 900)
    snapshot = await look(fleet(gone, Engine()))
    assert Meaning.RUNNING not in snapshot.engines[EngineKey("demo", "gone-0", "0")].gauges
    found = observe(snapshot, [EngineKey("demo", "chat-0", "0")])
    assert len(found.engines) == 1


# --- counters ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("T15")
async def test_a_restart_inside_the_window_is_growth_from_zero_and_never_negative() -> None:
    found = await seen(Engine(restarted=NOW - 10))
    (engine,) = found.engines
    # 9 scrapes before the restart grew 2/s over 16 s, those after it count from zero: 2/s over 10 s.
    assert engine.finished == pytest.approx(2 * 16 + 2 * 10, abs=4)
    assert (engine.preemptions, engine.stalled_for) == (0, 0)


async def test_how_long_no_token_moved() -> None:
    tokens = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    still = Engine(rates=dict.fromkeys(tokens, 0.0))
    assert (await seen(still)).engines[0].stalled_for == pytest.approx(300, abs=2)
    prefilling = Engine(rates={tokens[1]: 0.0})
    assert (await seen(prefilling)).engines[0].stalled_for == 0


async def test_raw_questions_name_every_family_old_and_new() -> None:
    source = Counting(fleet(Engine()))
    await look(source)
    names = {name for question in source.asked if isinstance(question, Samples) for name in question.names}
    assert {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:cache_config_info"} <= names
    assert {f"vllm:time_per_output_token_seconds{end}" for end in ("_sum", "_count")} <= names


@pytest.mark.parametrize(
    ("labels", "says"), [({"__name__": "up"}, "up, which was not asked"), ({}, "a series without a name, which was")]
)
async def test_what_was_not_asked_for_costs_the_engine_it_is_about(labels: dict[str, str], says: str) -> None:
    source = fleet(Engine())

    class Answering:
        """Answers with more than was asked for, as a proxy that rewrites questions does."""

        async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
            more = Series(labels={"namespace": "demo", "pod": "odd", **labels}, times=[at], values=[1.0])
            return [*await source.ask(question, at=at), *([more] if isinstance(question, Samples) else [])]

    snapshot = await look(Answering())
    assert snapshot.engines[EngineKey("demo", "chat-0", "0")].unreadable == ""
    assert says in snapshot.engines[EngineKey("demo", "odd", "")].unreadable
