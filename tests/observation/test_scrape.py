from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest

from vllm_autotuner.observation.errors import Rejected, SourceError, Unreachable, Unreadable
from vllm_autotuner.observation.questions import Samples
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.scrape import Clock, Scraped, ScrapeTarget, sample_engines, scrape_targets
from vllm_autotuner.observation.series import Series

STARTED = 1_795_000_000.0


class Time:
    """Moves only when somebody sleeps or an engine takes its time."""

    def __init__(self, *, early: float = 0.0) -> None:
        self.now = 50.0
        self.early = early

    def clock(self) -> Clock:
        return Clock(started=STARTED, monotonic=lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(0.0, seconds - self.early)


class Engine:
    """Counts its scrapes; each answer takes `takes` seconds, and `fails` names scrapes that get none."""

    def __init__(self, time: Time, *, takes: float = 0.0, fails: Callable[[int], bool] = lambda scrape: False) -> None:
        self.time, self.takes, self.fails = time, takes, fails
        self.scrapes = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.scrapes += 1
        self.time.now += self.takes
        if self.fails(self.scrapes):
            raise httpx.ConnectError("refused")
        page = f'vllm:num_requests_running{{engine="0"}} {self.scrapes}\npython_info 1\nvllm:x{{pod="theirs"}} 1\n'
        return httpx.Response(200, text=page)


async def sample(
    answer: Callable[[httpx.Request], httpx.Response],
    time: Time,
    *,
    urls: tuple[str, ...] = ("http://engine:8000",),
    seconds: float = 10,
    interval: float = 2,
) -> Scraped:
    return await sample_engines(
        scrape_targets(urls),
        duration=timedelta(seconds=seconds),
        interval=timedelta(seconds=interval),
        clock=time.clock(),
        transport=httpx.MockTransport(answer),
    )


async def running(recording: Recording) -> list[Series]:
    return list(await recording.ask(Samples(names=("vllm:num_requests_running",), window=10_000), at=STARTED + 5_000))


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        pytest.param(["http://a:8000"], [("http://a:8000/metrics", "")], id="a base URL"),
        pytest.param(["http://a:8000/"], [("http://a:8000/metrics", "")], id="a base URL with a slash"),
        pytest.param(["http://a:8000/metrics"], [("http://a:8000/metrics", "")], id="the page itself"),
        pytest.param(["a:8000"], [("http://a:8000/metrics", "")], id="host and port"),
        pytest.param(["https://a/chat"], [("https://a/chat/metrics", "")], id="behind a path"),
        pytest.param(["http://a/m?x=1"], [("http://a/m/metrics?x=1", "")], id="a query stays"),
        pytest.param(
            ["http://a:1", "http://b:2/metrics"],
            [("http://a:1/metrics", "a:1"), ("http://b:2/metrics", "b:2")],
            id="several are told apart by their address",
        ),
        pytest.param(
            ["http://u:p@a:1", "http://b:2"],
            [("http://u:p@a:1/metrics", "a:1"), ("http://b:2/metrics", "b:2")],
            id="credentials are no name",
        ),
        pytest.param(
            ["http://a/x", "http://a/y"],
            [("http://a/x/metrics", "a/x/metrics"), ("http://a/y/metrics", "a/y/metrics")],
            id="two behind one gateway",
        ),
        pytest.param(["http://a:1", "http://a:1/metrics"], [("http://a:1/metrics", "")], id="named twice is one"),
    ],
)
def test_what_people_type_becomes_pages(urls: list[str], expected: list[tuple[str, str]]) -> None:
    assert list(scrape_targets(urls)) == [ScrapeTarget(url=url, pod=pod) for url, pod in expected]


@pytest.mark.parametrize("url", ["", "http://", "ftp://a", "http://a:b", "http://a:99999", "http://[::1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(Rejected, match="is not a URL"):
        scrape_targets([url])


async def test_scrapes_at_its_pace_with_the_time_of_the_request() -> None:
    time = Time()
    found = await sample(Engine(time, takes=0.25), time)
    (series,) = await running(found.recording)
    assert [at - STARTED for at in series.times] == [0, 2, 4, 6, 8, 10]
    assert list(series.values) == [1, 2, 3, 4, 5, 6]
    assert found.failures == {}


async def test_a_slow_engine_is_not_scraped_in_a_burst_afterwards() -> None:
    time = Time()
    found = await sample(Engine(time, takes=3), time)
    (series,) = await running(found.recording)
    assert [at - STARTED for at in series.times] == [0, 4, 8]


async def test_a_first_answer_that_takes_all_of_the_time_is_followed_by_a_second() -> None:
    time = Time()
    engine = Engine(time, takes=25)
    found = await sample(engine, time, seconds=10)
    (series,) = await running(found.recording)
    assert [at - STARTED for at in series.times] == [0, 26]
    assert engine.scrapes == 2


async def test_a_sleep_that_ends_early_is_not_scraped_twice() -> None:
    time = Time(early=0.001)
    found = await sample(Engine(time), time)
    (series,) = await running(found.recording)
    assert [round(at - STARTED) for at in series.times] == [0, 2, 4, 6, 8, 10]


async def test_only_what_the_engine_says_of_itself_is_kept_under_its_own_name() -> None:
    time = Time()
    one = await sample(Engine(time), time)
    assert one.recording.names == {"vllm:num_requests_running", "vllm:x"}
    (series,) = await running(one.recording)
    assert "pod" not in series.labels
    two = await sample(Engine(time), time, urls=("http://a:1", "http://b:2"))
    assert {series.labels["pod"] for series in await running(two.recording)} == {"a:1", "b:2"}
    xs = await two.recording.ask(Samples(names=("vllm:x",), window=10_000), at=STARTED + 5_000)
    assert {series.labels["pod"] for series in xs} == {"a:1", "b:2"}


async def test_a_failed_scrape_is_a_gap_and_is_reported() -> None:
    time = Time()
    found = await sample(Engine(time, fails=lambda scrape: scrape in (2, 3)), time)
    (series,) = await running(found.recording)
    assert [at - STARTED for at in series.times] == [0, 6, 8, 10]
    assert list(found.failures) == ["http://engine:8000/metrics"]


async def test_one_engine_that_is_down_does_not_stop_the_others() -> None:
    time = Time()
    engine = Engine(time)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "down":
            raise httpx.ConnectError("refused")
        return engine(request)

    found = await sample(answer, time, urls=("http://up:1", "http://down:2"))
    assert [series.labels["pod"] for series in await running(found.recording)] == ["up:1"]
    assert list(found.failures) == ["http://down:2/metrics"]


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        pytest.param(lambda request: httpx.Response(404), Rejected, "404", id="no such page"),
        pytest.param(lambda request: httpx.Response(200, text="<html>"), Unreadable, "does not answer with", id="HTML"),
    ],
)
async def test_waiting_for_an_engine_that_cannot_be_read_is_refused_at_once(
    answer: Callable[[httpx.Request], httpx.Response], kind: type[SourceError], says: str
) -> None:
    time = Time()
    with pytest.raises(kind, match=says) as caught:
        await sample(answer, time)
    assert "http://engine:8000/metrics" in str(caught.value)
    assert time.now == 50.0


async def test_an_engine_that_never_answers_is_refused_at_once() -> None:
    time = Time()
    with pytest.raises(Unreachable):
        await sample(Engine(time, fails=lambda scrape: True), time)
    assert time.now == 50.0


async def test_every_attempt_moves_the_progress() -> None:
    time = Time()
    seen: list[str] = []
    await sample_engines(
        scrape_targets(["http://a:1", "http://b:2"]),
        duration=timedelta(seconds=4),
        interval=timedelta(seconds=2),
        clock=time.clock(),
        transport=httpx.MockTransport(Engine(time, fails=lambda scrape: scrape == 4)),
        scraped=lambda target: seen.append(target.pod),
    )
    assert sorted(set(seen)) == ["a:1", "b:2"]
    assert len(seen) >= 4
