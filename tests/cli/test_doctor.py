"""`doctor`: one finding for everything that would mislead a diagnosis, with a remedy; none where all is well."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.cli.servers import Page, redirecting, running, serving
from tests.cli.tls import Authority, serving_tls
from tests.patience import PATIENCE
from typer.testing import CliRunner, Result
from typing_extensions import override

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.diagnosis.request import subject_from
from vllm_autotuner.cli.doctor.checks import Finding, Status, examined
from vllm_autotuner.cli.doctor.facts import EngineFacts, Facts, facts_of_prometheus
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.engine.metric_names import NAMES, Meaning
from vllm_autotuner.observation.access import PrometheusAddress
from vllm_autotuner.observation.errors import Denied, NotAccepted, Overloaded, Rejected, TimedOut, Unreachable, Unusable
from vllm_autotuner.observation.snapshot import EngineKey

REAL_PAGE = (Path(__file__).parents[1] / "data" / "vllm-0.32" / "metrics.txt").read_text()
LABELS = {"namespace": "demo", "pod": "chat-0", "engine": "0", "instance": "10.0.0.1:8000", "job": "pods"}
INF = float("inf")
ITL_EDGES = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, INF}
TTFT_EDGES = {0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, INF}
CURRENT = frozenset(entry.names[0] for entry in NAMES.values())


def engine(**changes: Any) -> EngineFacts:
    """An engine without a fault but for what is named."""
    given: dict[str, Any] = {
        "names": set(CURRENT),
        "labels": LABELS,
        "scrapers": [LABELS],
        "interval": 15.0,
        "age": 4.0,
        "edges": {Meaning.TTFT: TTFT_EDGES, Meaning.ITL: ITL_EDGES, Meaning.TPOT: ITL_EDGES},
        "resets": 0.0,
        "info": {"num_gpu_blocks": "1"},
    }
    return EngineFacts(**{**given, **changes})


def found(*engines: EngineFacts, ttft: str = "2500ms", tpot: str = "50ms", **changes: Any) -> list[Finding]:
    keys = [EngineKey("demo", f"chat-{index}", "0") for index in range(len(engines))]
    facts: dict[str, Any] = {
        "place": "p",
        "scraped": True,
        "skew": 0.2,
        "engines": dict(zip(keys, engines, strict=True)),
    }
    subject = subject_from(ObjectiveOptions(ttft=ttft, tpot=tpot), engine_args=None)
    return list(examined(Facts(**{**facts, **changes}), subject.targets))


def wrong(findings: list[Finding]) -> dict[str, tuple[Status, str]]:
    assert all(bool(one.remedy) == (one.status is not Status.OK) for one in findings)
    return {one.check: (one.status, one.what) for one in findings if one.status is not Status.OK}


def test_a_good_prometheus_has_no_complaint() -> None:
    findings = found(engine(), engine())
    assert wrong(findings) == {}
    assert {one.check for one in findings} == {
        *("engines", "answers", "clocks", "labels", "freshness", "interval", "duplicates", "counters"),
        *("families", "pool", "buckets-ttft", "buckets-tpot"),
    }


OLD = (CURRENT - {NAMES[Meaning.KV_USAGE].names[0], NAMES[Meaning.ITL].names[0]}) | {
    NAMES[Meaning.KV_USAGE].names[1],
    NAMES[Meaning.ITL].names[1],
}


@pytest.mark.parametrize(
    ("engines", "changes", "check", "status", "says"),
    [
        pytest.param([], {}, "engines", Status.FAILED, "no vLLM engine reports to p", id="nobody reports"),
        pytest.param([engine()], {"warnings": ["store down"]}, "answers", Status.FAILED, "store down", id="partial"),
        pytest.param([engine()], {"skew": 12.0}, "clocks", Status.WARNING, "12 s ahead of", id="our clock is ahead"),
        pytest.param([engine()], {"skew": -90.0}, "clocks", Status.FAILED, "90 s behind", id="our clock is behind"),
        pytest.param(
            [engine(), engine(labels={**LABELS, "pod": ""})],
            {},
            "labels",
            Status.WARNING,
            "demo/chat-1 lacks pod",
            id="no pod label",
        ),
        pytest.param([engine(age=400.0)], {}, "freshness", Status.WARNING, "400 s ago", id="an engine went silent"),
        pytest.param(
            [engine(interval=30.0)], {}, "interval", Status.WARNING, "a diagnosis needs 120 s", id="scraped slowly"
        ),
        pytest.param(
            [engine(interval=120.0, age=60.0)],
            {},
            "interval",
            Status.FAILED,
            "a window of 300 s has too few samples",
            id="far too slowly",
        ),
        pytest.param(
            [engine(scrapers=[LABELS, {**LABELS, "job": "annotations"}])],
            {},
            "duplicates",
            Status.FAILED,
            "2 live series that differ in job",
            id="two jobs scrape one pod",
        ),
        pytest.param([engine(resets=9.0)], {}, "counters", Status.FAILED, "was reset 9 times", id="counters that fall"),
        pytest.param(
            [engine(names=CURRENT - {NAMES[Meaning.TTFT].names[0]})],
            {},
            "families",
            Status.WARNING,
            "vllm:time_to_first_token_seconds (the TTFT objective is not checked)",
            id="a histogram is dropped",
        ),
        pytest.param(
            [engine(names=CURRENT - {NAMES[Meaning.WAITING].names[0]})],
            {},
            "families",
            Status.FAILED,
            "this engine cannot be diagnosed",
            id="the queue is dropped",
        ),
        pytest.param([engine(info=None)], {}, "pool", Status.WARNING, "cache_config_info", id="no pool"),
        pytest.param(
            [engine()], {"tpot": "20ms"}, "buckets-tpot", Status.WARNING, "10 ms to 25 ms", id="a wide bucket"
        ),
        pytest.param([engine()], {"tpot": "1s"}, "buckets-tpot", Status.FAILED, "ends at 200 ms", id="above the last"),
        pytest.param([engine()], {"tpot": "5ms"}, "buckets-tpot", Status.WARNING, "0 s to 10 ms", id="below the first"),
        pytest.param([engine()], {"ttft": "1700ms"}, "buckets-ttft", Status.WARNING, "1 s to 2.5 s", id="a wide TTFT"),
    ],
)
def test_each_fault_has_its_finding_and_no_other(
    engines: list[EngineFacts], changes: Mapping[str, Any], check: str, status: Status, says: str
) -> None:
    complaints = wrong(found(*engines, **changes))
    assert set(complaints) == {check}
    assert complaints[check][0] is status
    assert says in complaints[check][1]


@pytest.mark.parametrize("tpot", ["50ms", "48ms", "54ms", "70ms", "110ms"])
def test_objectives_near_an_edge_or_in_a_narrow_bucket_are_fine(tpot: str) -> None:
    assert wrong(found(engine(), tpot=tpot)) == {}


def test_an_older_engine_is_understood_and_told() -> None:
    findings = found(engine(names=set(OLD) - {NAMES[Meaning.WAITING_BY_REASON].names[0]}))
    assert wrong(findings) == {}
    (families,) = [one for one in findings if one.check == "families"]
    assert "an older vLLM: 2 of its metrics have former names" in families.what
    assert "not in this version: waiting by reason" in families.what


# --- over HTTP --------------------------------------------------------------------------------------------------------


def run(*args: str) -> Result:
    result = CliRunner().invoke(app, ["doctor", *args])
    assert "Traceback" not in result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


class Server:
    """Answers the six queries about one engine that is scraped each 5 s; `NOW` is its clock."""

    NOW = 1_795_000_000.0

    def __init__(self, **body: Any) -> None:
        self.body = body
        self.queries: list[str] = []

    def __call__(self, path: str, body: str) -> tuple[int, str]:
        (query,) = parse_qs(urlsplit(path).query)["query"]
        self.queries.append(query)
        return 200, json.dumps({"status": "success", **self.body, "data": {"result": self._result(query)}})

    def _result(self, query: str) -> Any:
        one = str(1)
        if query == "time()":
            return [self.NOW, repr(self.NOW)]
        if query.endswith("[600s]"):
            times = [self.NOW - 2 - 5 * index for index in range(20)]
            return [{"metric": LABELS, "values": [[time, "4"] for time in reversed(times)]}]
        if query.startswith("group by (__name__, le"):
            name = f"{NAMES[Meaning.ITL].names[0]}_bucket"
            edges = ("0.01", "0.025", "0.05", "+Inf")
            return [{"metric": {**LABELS, "__name__": name, "le": le}, "value": [self.NOW, one]} for le in edges]
        if query.startswith("group by (__name__"):
            names = [f"{entry.names[0]}{'_bucket' * (entry.kind == 'histogram')}" for entry in NAMES.values()]
            return [{"metric": {**LABELS, "__name__": name}, "value": [self.NOW, one]} for name in names]
        if "resets(" in query:
            return [{"metric": LABELS, "value": [self.NOW, "0"]}]
        assert query.startswith("last_over_time(vllm:cache_config_info[")
        return [{"metric": {**LABELS, "block_size": "16"}, "value": [self.NOW, one]}]


def facts(server: Callable[[str, str], tuple[int, str]], *, ahead: float = 0.0) -> Facts:
    with serving(server) as url:
        return facts_of_prometheus(PrometheusAddress(url=url), place="p", now=lambda: Server.NOW + ahead)


def test_facts_come_from_six_queries_however_many_engines_there_are() -> None:
    server = Server()
    seen = facts(server, ahead=7.0)
    assert len(server.queries) == 6
    assert sum("[15s]" in query for query in server.queries) == 3
    (found_engine,) = seen.engines.values()
    assert seen.skew == pytest.approx(7.0)
    assert (found_engine.interval, found_engine.age, found_engine.resets) == (5.0, 2.0, 0.0)
    assert found_engine.names == CURRENT
    assert found_engine.edges == {Meaning.ITL: {0.01, 0.025, 0.05, INF}}
    assert found_engine.info is not None
    assert len(found_engine.scrapers) == 1


def test_a_warning_of_the_server_is_kept() -> None:
    assert facts(Server(warnings=["store down"])).warnings == ["store down"]


@pytest.mark.parametrize(
    ("status", "text", "kind", "says"),
    [
        (401, "no", NotAccepted, "401"),
        (403, '{"error": "forbidden: may not read"}', Denied, "forbidden: may not read"),
        (400, '{"status":"error","error":"parse error"}', Rejected, "parse error"),
        (404, "no", Rejected, "404: no$"),
        (500, "oops", Overloaded, "500: oops$"),
        (200, "<html>", Unusable, "not a Prometheus API"),
        (200, '{"status":"success"}', Unusable, "is not a Prometheus API"),
        (200, '{"data":{"result":[{"metric":{}}]}}', Unusable, "is not a Prometheus API"),
        (200, "null", Unusable, "is not a Prometheus API"),
    ],
)
def test_every_bad_answer_has_a_kind(status: int, text: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        facts(lambda path, body: (status, text))


def test_a_server_that_never_ends_its_answer_is_left_alone() -> None:
    """Each byte comes in time, and the answer never."""
    left = threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while not left.wait(0.01):
                    self.wfile.write(b" ")

        @override
        def log_message(self, *args: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = PrometheusAddress(url=f"http://127.0.0.1:{server.server_address[1]}", timeout=timedelta(seconds=0.2))
    try:
        with pytest.raises(TimedOut, match="did not answer within"):
            facts_of_prometheus(address, place="p", now=lambda: 0.0)
    finally:
        left.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Odd(Server):
    """Answers one query in another way."""

    def __init__(self, begins: str, result: Any, **body: Any) -> None:
        super().__init__(**body)
        self.begins, self.result = begins, result

    @override
    def _result(self, query: str) -> Any:
        return self.result if query.startswith(self.begins) else super()._result(query)


@pytest.mark.parametrize("result", [[], [Server.NOW, "NaN"], [Server.NOW, "soon"]], ids=["empty", "NaN", "a word"])
def test_a_server_that_does_not_know_the_time_is_unusable(result: Any) -> None:
    with pytest.raises(Unusable):
        facts(Odd("time()", result))


HISTOGRAM: dict[str, Any] = {"metric": LABELS, "histogram": [Server.NOW, {"count": "1", "sum": "1", "buckets": []}]}
EDGE: dict[str, Any] = {
    "metric": {**LABELS, "__name__": f"{NAMES[Meaning.ITL].names[0]}_bucket"},
    "value": [Server.NOW, "1"],
}


@pytest.mark.parametrize(
    ("begins", "result"),
    [
        pytest.param("group by (__name__, le", [{**EDGE, "metric": {**EDGE["metric"], "le": "abc"}}], id="le abc"),
        pytest.param("group by (__name__, le", [EDGE], id="no le"),
        pytest.param("{__name__", [{"metric": LABELS, "histograms": [HISTOGRAM["histogram"]]}], id="native histograms"),
        pytest.param("sum by", [HISTOGRAM], id="a native histogram"),
        pytest.param("{__name__", [], id="no engine"),
    ],
)
def test_an_odd_series_is_no_traceback(begins: str, result: Any) -> None:
    server = Odd(begins, result)
    facts(server)
    with serving(server) as url:
        run("--prometheus", url)


def test_a_router_is_no_engine_that_is_scraped_twice() -> None:
    lines = [f'vllm:{gauge}{{server="http://10.0.0.{n}:8000"}} 1' for gauge in GAUGE_NAMES for n in (1, 2)]
    with serving(lambda path, body: (200, "\n".join([*lines, ""]))) as url:
        result = run("--metrics", url)
    text = " ".join(result.stdout.split())
    assert "is a router that repeats the gauges of 2 engine(s)" in text
    assert "live series that differ" not in text


GAUGE_NAMES = ("num_requests_running", "num_requests_waiting")


@pytest.mark.parametrize(
    ("warnings", "expected"), [("half", ["half"]), ({"a": 1}, ["{'a': 1}"]), (7, ["7"]), ([], []), (None, [])]
)
def test_warnings_that_are_no_list_are_one_warning(warnings: Any, expected: list[str]) -> None:
    assert facts(Server(warnings=warnings)).warnings == expected


def test_headers_do_not_follow_a_redirect_to_another_host() -> None:
    seen: list[str] = []

    def elsewhere(path: str, body: str) -> tuple[int, str]:
        seen.append(path)
        return 200, "{}"

    with serving(elsewhere) as other, redirecting(other.replace("127.0.0.1", "localhost")) as url:
        result = run("--prometheus", url, "--org-id", "team-a")
    assert result.exit_code == 2
    assert "would get your headers" in " ".join(result.output.split())
    assert seen == []


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"], ids=["silent", "half"])
def test_a_server_that_is_slow_is_said_to_be_slow(head: bytes) -> None:
    left = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.wfile.write(head)
            left.wait(PATIENCE)

        @override
        def log_message(self, *args: object) -> None:
            """Stay silent."""

    with running(Slow) as url:
        address = PrometheusAddress(url=url, timeout=timedelta(seconds=0.2))
        try:
            with pytest.raises(TimedOut, match=rf"^{url} did not answer within 0\.2 s$"):
                facts_of_prometheus(address, place="p", now=lambda: 0.0)
        finally:
            left.set()


def test_a_closed_port_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"^cannot reach http://127\.0\.0\.1:1: \[Errno 111\] Connection refused$"):
        facts_of_prometheus(PrometheusAddress(url="http://127.0.0.1:1"), place="p", now=lambda: 0.0)


def test_permission_says_what_to_grant_and_shows_no_credential(tmp_path: Path) -> None:
    authority, token = Authority(tmp_path), tmp_path / "token"
    token.write_text("t0p-secret-token")
    mine = authority.sign("me")
    with serving_tls(
        '{"error": "Bearer t0p-secret-token may not"}',
        server=authority.sign("server"),
        status=403,
        clients_of=authority.file,
    ) as (url, visits):
        result = run(
            *("--prometheus", url, "--ca-file", str(authority.file), "--bearer-token-file", str(token)),
            *("--client-cert", str(mine.cert), "--client-key", str(mine.key), "--org-id", "team-a"),
        )
    assert result.exit_code == 2
    assert "failed  permission" in result.stdout
    assert "cluster-monitoring-view" in result.stdout
    assert "t0p-secret-token" not in result.output
    assert visits.headers[0]["Authorization"] == "Bearer t0p-secret-token"
    assert visits.headers[0]["X-Scope-OrgID"] == "team-a"
    assert visits.clients == ["me"]


@pytest.mark.parametrize("source", ["--prometheus", "--metrics"])
@pytest.mark.parametrize(
    ("status", "options", "says"),
    [
        (401, "--bearer-token-file {file}", "The token is not accepted: it expired"),
        (403, "--bearer-token-file {file}", "The token is valid but may not read metrics"),
        (401, "--basic-auth-user me --basic-auth-password-file {file}", "User or password is wrong"),
        (403, "--basic-auth-user me --basic-auth-password-file {file}", "The user is known but may not query"),
        (401, "", "The server requires credentials"),
    ],
)
def test_what_is_not_accepted_is_told_from_what_may_not_read(
    tmp_path: Path, source: str, status: int, options: str, says: str
) -> None:
    file = tmp_path / "secret"
    file.write_text("t0p-secret-token")
    with serving(lambda path, body: (status, "no")) as url:
        result = run(source, url, *options.format(file=file).split())
    assert result.exit_code == 2
    assert f"failed  permission   {url}" in result.stdout.replace("/metrics", "")
    assert says in result.stdout


@pytest.mark.parametrize("source", ["--prometheus", "--metrics"])
@pytest.mark.parametrize("option", ["--bearer-token-file", "--client-cert", "--ca-file"])
@pytest.mark.parametrize("content", [None, ""], ids=["missing", "empty"])
def test_a_file_that_cannot_be_used_is_to_be_repaired(
    tmp_path: Path, source: str, option: str, content: str | None
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    result = run(source, "https://127.0.0.1:1", option, str(file))
    assert result.exit_code == 2
    assert "Repair that file" in result.stdout
    assert "curl" not in result.stdout


@pytest.mark.parametrize("source", ["--prometheus", "--metrics"])
def test_a_certificate_of_a_foreign_ca_says_how_to_trust_it(tmp_path: Path, source: str) -> None:
    with serving_tls("{}", server=Authority(tmp_path).sign("server")) as (url, _):
        result = run(source, url)
    assert "name the CA that signed it with --ca-file" in result.stdout


def test_a_page_of_something_else_is_not_a_matter_of_prometheus() -> None:
    with serving(lambda path, body: (200, "go_goroutines 7\n")) as url:
        result = run("--metrics", url)
    assert result.exit_code == 2
    assert f"no metrics of vLLM at {url}" in result.stdout
    assert "Prometheus" not in result.stdout


def test_a_real_page_is_examined_for_programs_too() -> None:
    with serving(lambda path, body: (200, REAL_PAGE)) as url:
        result = run("--metrics", url, "--tpot", "20ms", "--ttft", "2500ms", "--output", "json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["worst"] == "warning"
    said = {one["check"]: one["what"] for one in answer["checks"]}
    assert said["engines"] == "1 vLLM engine found", "a server that counts rejections is no engine"
    assert "not in this version" not in said["families"]
    assert {one["check"]: one["status"] for one in answer["checks"]} == {
        "engines": "ok",
        "duplicates": "ok",
        "families": "ok",
        "pool": "ok",
        "buckets-ttft": "ok",
        "buckets-tpot": "warning",
    }


def test_a_poor_page_is_told_in_words() -> None:
    with serving(Page(without=frozenset({"time_to_first_token_seconds"}))) as url:
        result = run("--metrics", url)
    assert result.exit_code == 1
    assert "warning families" in result.stdout
    assert "vllm:time_to_first_token_seconds (the TTFT objective is not checked)" in result.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "exactly one of"),
        (["--prometheus", "http://x", "--metrics", "x"], "exactly one of"),
        (["--prometheus", "http://x", "--tpot", "2"], "write a positive duration"),
        (["--prometheus", "http://x", "--output", "yaml"], "human or json"),
    ],
)
def test_a_wrong_option_is_one_line(args: list[str], says: str) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_what_cannot_be_reached_is_a_finding() -> None:
    result = run("--prometheus", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "failed  reachable" in result.stdout
