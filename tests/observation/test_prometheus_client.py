import asyncio
import ssl
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from vllm_autotuner.observation import prometheus
from vllm_autotuner.observation.errors import Overloaded, Rejected, SourceError, TimedOut, Unreachable, Unusable
from vllm_autotuner.observation.prometheus import PageReader, PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.questions import Samples

URL = "http://prometheus.test:9090"
Answer = Callable[[httpx.Request], httpx.Response]


def answering(status: int = 200, *, body: Any = None, text: str | None = None) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, text=text) if text is not None else httpx.Response(status, json=body)

    return answer


def vector(*results: dict[str, Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "vector", "result": list(results)}}


async def query(answer: Answer, **address: Any) -> Any:
    source = PrometheusSource(PrometheusAddress(url=URL, **address), transport=httpx.MockTransport(answer))
    try:
        return await source.query("up", at=1795211087.0)
    finally:
        await source.close()


async def page(answer: Answer, *, url: str = URL) -> str:
    reader = PageReader(timeout=timedelta(seconds=30), transport=httpx.MockTransport(answer))
    try:
        return await reader.fetch(url)
    finally:
        await reader.close()


def every_subclass(error: type[Exception]) -> Iterator[type[Exception]]:
    yield error
    for child in error.__subclasses__():
        yield from every_subclass(child)


def raising(error: Exception) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


async def test_an_alert_after_the_handshake_is_a_server_that_does_not_answer() -> None:
    alert = raising(ssl.SSLError(1, "tlsv13 alert certificate required"))
    with pytest.raises(Unreachable, match="certificate required"):
        await query(alert)
    with pytest.raises(Unreachable, match="certificate required"):
        await page(alert)


@pytest.mark.parametrize("error", sorted(every_subclass(httpx.TransportError), key=str))
async def test_no_transport_error_leaves_as_itself(error: type[httpx.TransportError]) -> None:
    slow = issubclass(error, httpx.TimeoutException)
    says = r"did not answer within \d+ s$" if slow else "cannot reach"
    with pytest.raises(TimedOut if slow else Unreachable, match=says):
        await query(raising(error("broken")))
    with pytest.raises(TimedOut if slow else Unreachable, match=says):
        await page(raising(error("")))


@pytest.mark.parametrize("error", [httpx.TooManyRedirects("round"), httpx.DecodingError("not gzip")], ids=repr)
async def test_neither_do_redirects_or_encodings(error: Exception) -> None:
    with pytest.raises(Unreachable):
        await query(raising(error))


async def test_an_answer_is_read() -> None:
    found = await query(
        answering(
            body=vector(
                {"metric": {"__name__": "up", "pod": "a"}, "value": [1795211087, "1"]},
                {"metric": {"pod": "b"}, "values": [[10, "1.5"], [20, "NaN"], [30, "+Inf"]]},
            )
        )
    )
    assert (found[0].labels, list(found[0].times)) == ({"__name__": "up", "pod": "a"}, [1795211087])
    assert (list(found[0].values), list(found[1].times)) == ([1.0], [10, 20, 30])
    assert str(list(found[1].values)) == "[1.5, nan, inf]"


async def test_the_question_is_asked_for_its_moment_and_partial_answers_are_declined() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=vector())

    address = PrometheusAddress(url=f"{URL}/prometheus/", headers={"X-Scope-OrgID": "gpu"})
    source = PrometheusSource(address, transport=httpx.MockTransport(answer))
    assert list(await source.ask(Samples(names=("up",), window=30), at=1795211087.25)) == []
    await source.close()
    (request,) = seen
    form = parse_qs(request.content.decode())
    assert (request.method, str(request.url)) == ("POST", f"{URL}/prometheus/api/v1/query")
    assert form["query"] == ['{__name__=~"up"}[30s]']
    assert (form["time"], form["timeout"], form["partial_response"]) == (["1795211087.250"], ["10s"], ["false"])
    assert request.headers["X-Scope-OrgID"] == "gpu"


HALF = '{"status":"success","data":{"resultType":"vector","result":[{"metric":{'


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        pytest.param(answering(401, text="no"), Rejected, "check the credentials", id="401 is for the admin"),
        pytest.param(answering(403, text="no"), Rejected, "check the credentials", id="403 is for the admin"),
        pytest.param(answering(404, text="404 page not found"), Rejected, "404", id="404 is a wrong path"),
        pytest.param(
            answering(400, body={"status": "error", "errorType": "bad_data", "error": "parse error"}),
            Rejected,
            "parse error",
            id="400 is our query",
        ),
        pytest.param(
            answering(422, body={"status": "error", "errorType": "execution", "error": "too many samples"}),
            Overloaded,
            "too many samples",
            id="422 is not this time",
        ),
        pytest.param(answering(429, text="slow down"), Overloaded, "slow down", id="429 is not this time"),
        pytest.param(answering(500, text="oops\nstack"), Overloaded, "oops", id="500 shows one line"),
        pytest.param(answering(503, text=""), Overloaded, "(empty)", id="503 without a word"),
        pytest.param(answering(504, text="<html>"), Overloaded, "504", id="504 of a proxy"),
        pytest.param(
            answering(200, text="<html>login</html>"), Unusable, "not a Prometheus API", id="HTML of a login page"
        ),
        pytest.param(answering(200, text=""), Unusable, "(empty)", id="nothing at all"),
        pytest.param(answering(200, text=HALF), Unusable, "not a Prometheus API", id="half a JSON"),
        pytest.param(answering(200, body=[1]), Unusable, "not a Prometheus API", id="JSON of something else"),
        pytest.param(answering(200, body={"status": "success"}), Unusable, "does not follow", id="no data"),
        pytest.param(answering(200, body=vector({"metric": {}})), Unusable, "does not follow", id="no value"),
        pytest.param(
            answering(200, body=vector({"metric": {}, "value": [1, "one"]})),
            Unusable,
            "does not follow",
            id="no number",
        ),
        pytest.param(
            answering(200, body=vector({"metric": {}, "value": [1]})), Unusable, "does not follow", id="half a point"
        ),
        pytest.param(
            answering(200, body=vector({"metric": {}, "values": [[1e308, "1"], [-1e308, "1"]]})),
            Unusable,
            "a time that is none",
            id="times that are none",
        ),
        pytest.param(
            answering(200, text=HALF + '},"values":[[NaN,"1"],[Infinity,"1"]]}]}}'),
            Unusable,
            "a time that is none",
            id="times that are no numbers",
        ),
        pytest.param(
            answering(200, body={**vector(), "warnings": ["store gateway down", "more"]}),
            Unusable,
            "partial answer: store gateway down",
            id="warnings are a partial answer",
        ),
        pytest.param(
            answering(200, body={"status": "error", "error": "query timed out"}), Rejected, "timed out", id="200 but no"
        ),
    ],
)
async def test_every_bad_answer_has_a_kind_and_one_line(answer: Answer, kind: type[SourceError], says: str) -> None:
    with pytest.raises(SourceError) as caught:
        await query(answer)
    assert type(caught.value) is kind
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_infos_are_no_warnings() -> None:
    body = {**vector(), "infos": ["metric might not be a counter"]}
    assert list(await query(answering(200, body=body))) == []


async def test_a_server_that_trickles_is_given_up_after_the_deadline() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError("the deadline comes first")

    # One second is added to the limit for what the server needs to give up by itself: this leaves 50 ms.
    address = PrometheusAddress(url=URL, timeout=timedelta(milliseconds=-950))
    source = PrometheusSource(address, transport=httpx.MockTransport(answer))
    with pytest.raises(Unreachable, match="did not answer"):
        await source.query("up", at=0)
    await source.close()


async def test_credentials_are_read_again_on_each_query(tmp_path: Path) -> None:
    token, seen = tmp_path / "token", []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return httpx.Response(200, json=vector())

    address = PrometheusAddress(url=URL, bearer_token_file=token)
    source = PrometheusSource(address, transport=httpx.MockTransport(answer))
    for value in ("first\n", "second"):
        token.write_text(value)
        await source.query("up", at=0)
    await source.close()
    assert seen == ["Bearer first", "Bearer second"]


async def test_basic_authentication(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pass word\n")
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return httpx.Response(200, json=vector())

    await query(answer, username="me", password_file=password)
    assert seen == [httpx.BasicAuth("me", "pass word")._auth_header]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["a missing token", "a token that is not text"])
async def test_unreadable_credentials_are_for_the_admin(tmp_path: Path, content: bytes | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(Rejected, match="cannot read the credentials"):
        await query(answering(body=vector()), bearer_token_file=token)


async def test_a_header_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(Rejected, match="headers"):
        await query(answering(body=vector()), headers={"X-Scope-OrgID": "köln"})


@pytest.mark.parametrize(
    "url",
    ["", "localhost:9090", "ftp://host", "http://", "http://host:abc", "http://host:99999", "http://[::1", "/var/run"],
)
async def test_what_is_no_url_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(Rejected, match="is not a URL"):
        PrometheusSource(PrometheusAddress(url=url))
    with pytest.raises(Rejected, match="is not a URL"):
        await page(answering(text="up 1"), url=url)


@pytest.mark.parametrize("content", [None, b"not a certificate"], ids=["missing", "no certificate"])
def test_an_unreadable_ca_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Rejected, match="CA file"):
        PrometheusSource(PrometheusAddress(url=URL, ca_file=file))


async def test_a_page_that_never_ends_is_cut_off() -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 2**20

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=endless())

    with pytest.raises(Unusable, match="more than 32 MiB"):
        await page(answer)


async def test_a_page_that_is_not_there_is_refused() -> None:
    with pytest.raises(Rejected, match="404"):
        await page(answering(404, text="no"))


async def test_an_excerpt_of_a_wrong_answer_is_short() -> None:
    body = vector(*[{"metric": {"pod": f"chat-{number}"}} for number in range(50)])
    with pytest.raises(Unusable) as caught:
        await query(answering(body=body))
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("location", "goes"),
    [
        pytest.param("http://other.example/api", False, id="another host"),
        pytest.param("http://prometheus.example:9999/api", True, id="another port of it"),
        pytest.param("https://prometheus.example/api", True, id="the same host with TLS"),
        pytest.param("/prefix/api", True, id="another path"),
    ],
)
@pytest.mark.parametrize("headers", [{"X-Scope-OrgID": "team-a"}, {}], ids=["with headers", "without"])
async def test_headers_do_not_follow_to_another_host(location: str, goes: bool, headers: dict[str, str]) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.host)
        if len(seen) == 1:
            return httpx.Response(307, headers={"location": location})
        return httpx.Response(200, json=vector())

    address = PrometheusAddress(url="http://prometheus.example", headers=headers)
    source = PrometheusSource(address, transport=httpx.MockTransport(answer))
    try:
        if goes or not headers:
            await source.query("up", at=0)
        else:
            with pytest.raises(Rejected, match=r"redirects to http://other\.example/api, which would get your headers"):
                await source.query("up", at=0)
            assert seen == ["prometheus.example"]
    finally:
        await source.close()


def in_turn(*answers: Answer) -> tuple[Answer, list[httpx.Request]]:
    """A server that answers so, one after the other and the last for ever, and what it was asked."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers[min(len(asked), len(answers)) - 1](request)

    return answer, asked


GOOD = answering(200, body=vector({"metric": {"pod": "a"}, "value": [1, "2"]}))


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(answering(503, text="busy"), id="503"),
        pytest.param(answering(500, text="oops"), id="500"),
        pytest.param(raising(httpx.ConnectError("refused")), id="refused"),
        pytest.param(raising(httpx.RemoteProtocolError("closed")), id="closed by the server"),
    ],
)
async def test_what_fails_at_once_is_asked_twice_more(failure: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "PAUSE", 0.0)
    for failures in ((failure,), (failure, failure)):
        answer, asked = in_turn(*failures, GOOD)
        assert [series.labels for series in await query(answer)] == [{"pod": "a"}]
        assert len(asked) == len(failures) + 1
        assert len({(each.url, each.content) for each in asked}) == 1
    answer, asked = in_turn(failure, failure, failure, GOOD)
    with pytest.raises((Overloaded, Unreachable)):
        await query(answer)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(answering(401, text="who"), id="401"),
        pytest.param(answering(429, text="slow down"), id="429"),
        pytest.param(answering(422, body={"status": "error", "error": "too many samples"}), id="422"),
        pytest.param(answering(200, text=HALF), id="half an answer"),
        pytest.param(raising(httpx.ReadTimeout("late")), id="no answer in time"),
    ],
)
async def test_whatever_else_fails_is_asked_again_in_the_next_tick(failure: Answer) -> None:
    answer, asked = in_turn(failure, GOOD)
    with pytest.raises(SourceError):
        await query(answer)
    assert len(asked) == 1


async def test_a_server_that_gave_up_after_a_while_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "AT_ONCE", 0.0)
    answer, asked = in_turn(answering(503, text="query timed out"), GOOD)
    with pytest.raises(Overloaded):
        await query(answer)
    assert len(asked) == 1


async def test_series_are_counted_within_the_matchers() -> None:
    answer, asked = in_turn(answering(200, body=vector({"metric": {"namespace": "a"}, "value": [1, "157"]})))
    address = PrometheusAddress(url=URL, match=('cluster="eu"',))
    source = PrometheusSource(address, transport=httpx.MockTransport(answer))
    [found] = await source.count(["a", "b"], at=1795211087.0)
    await source.close()
    assert (found.labels, list(found.values)) == ({"namespace": "a"}, [157.0])
    [query] = parse_qs(asked[0].content.decode())["query"]
    assert query == 'count by (namespace) ({__name__=~"vllm:.+",namespace=~"a|b",cluster="eu"})'
