"""The decisions of the process node, without processes and without a cluster."""

import asyncio
import base64
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typing_extensions import override

from e2e.agent.backoff import BackOff
from e2e.agent.container import Container
from e2e.agent.environment import PodFacts, Source, environment, expand, quantity_of, references
from e2e.agent.grace import GracePeriod
from e2e.agent.images import Image, ImageTable, parse_images
from e2e.agent.logs import LogFile, LogQuery, fallback_message, shown, tail
from e2e.agent.node import node_labels
from e2e.agent.objects import Object, Unstartable
from e2e.agent.probes import ProbeFailed, ProbeTiming, Streak, port_of, verdicts
from e2e.agent.process import Mount
from e2e.agent.status import ContainerView, PodView, Running, State, Terminated, Waiting, pod_status, restarts
from e2e.agent.volumes import changes, relocated
from e2e.ports import free_ports
from e2e.processes import PATIENCE
from e2e.services import Address, Forwarder, routes

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
POD: Object = {
    "metadata": {
        "name": "web-1",
        "namespace": "shop",
        "uid": "u1",
        "labels": {"app": "web", "tier": "front"},
        "annotations": {"note/x": "hello"},
    },
    "spec": {
        "nodeName": "bed",
        "serviceAccountName": "robot",
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "1500m", "memory": "2Gi"}}}],
    },
}
FACTS = PodFacts(pod=POD, pod_ip="10.200.0.9", host_ip="10.200.0.1")


class TestBackOff:
    @pytest.mark.parametrize(
        ("failures", "seconds"),
        [(0, 0), (1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (8, 300), (10_000, 300)],
    )
    def test_first_at_once_then_doubling_to_the_cap(self, failures: int, seconds: float) -> None:
        assert BackOff(base=10, cap=300).before_restart(failures) == seconds

    def test_a_long_run_is_forgiven(self) -> None:
        assert BackOff(base=10, cap=300).forgives(600)
        assert not BackOff(base=10, cap=300).forgives(599)


class TestExpansion:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            pytest.param("$(A)-$(B)", "1-2", id="known names are replaced"),
            pytest.param("$(MISSING)", "$(MISSING)", id="an unknown name stays"),
            pytest.param("$$(A)", "$(A)", id="a doubled dollar escapes"),
            pytest.param("$A ${A} 5$", "$A ${A} 5$", id="shell syntax is not ours"),
            pytest.param("$(A", "$(A", id="an open bracket stays"),
        ],
    )
    def test_expand(self, text: str, expected: str) -> None:
        assert expand(text, {"A": "1", "B": "2"}) == expected


def config_map(**data: str) -> Object:
    return {"kind": "ConfigMap", "data": data}


def secret(**data: str) -> Object:
    return {"kind": "Secret", "data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}}


def env_of(container: Object, sources: Mapping[Source, Object | None] | None = None) -> dict[str, str]:
    return environment({"name": "c", **container}, facts=FACTS, sources=sources or {}, base={"BASE": "b"})


class TestEnvironment:
    def test_a_value_may_use_what_was_defined_before_it(self) -> None:
        entries = [{"name": "A", "value": "$(BASE)/$(B)"}, {"name": "B", "value": "2"}, {"name": "C", "value": "$(B)"}]
        assert env_of({"env": entries}) == {"BASE": "b", "A": "b/$(B)", "B": "2", "C": "2"}

    def test_env_wins_over_env_from(self) -> None:
        container = {
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}],
            "env": [{"name": "key", "value": "own"}],
        }
        sources = {("configmaps", "m"): config_map(one="1"), ("secrets", "s"): secret(key="theirs")}
        assert env_of(container, sources) == {"BASE": "b", "P_one": "1", "key": "own"}
        assert list(references(container)) == [("configmaps", "m"), ("secrets", "s")]

    def test_keys_of_config_maps_and_secrets(self) -> None:
        container = {
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "a"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "b"}}},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "none", "optional": True}}},
                {"name": "D", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a", "optional": True}}},
            ]
        }
        sources = {
            ("configmaps", "m"): config_map(a="1"),
            ("secrets", "s"): secret(b="2"),
            ("configmaps", "none"): None,
        }
        assert env_of(container, sources) == {"BASE": "b", "A": "1", "B": "2"}
        assert list(references(container)) == [
            ("configmaps", "m"),
            ("secrets", "s"),
            ("secrets", "s"),
            ("configmaps", "none"),
        ]

    @pytest.mark.parametrize(
        "value_from",
        [
            pytest.param({"configMapKeyRef": {"name": "none", "key": "a"}}, id="no such ConfigMap"),
            pytest.param({"configMapKeyRef": {"name": "m", "key": "none"}}, id="no such key"),
            pytest.param({"fieldRef": {"fieldPath": "spec.none"}}, id="no such field"),
            pytest.param({"fileKeyRef": {}}, id="a kind of reference that the node does not have"),
        ],
    )
    def test_what_is_missing_cannot_be_started(self, value_from: Object) -> None:
        with pytest.raises(Unstartable) as caught:
            env_of({"env": [{"name": "A", "valueFrom": value_from}]}, {("configmaps", "m"): config_map(a="1")})
        assert caught.value.reason == "CreateContainerConfigError"

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("metadata.name", "web-1"),
            ("metadata.namespace", "shop"),
            ("metadata.uid", "u1"),
            ("metadata.labels['app']", "web"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['note/x']", "hello"),
            ("metadata.labels", 'app="web"\ntier="front"'),
            ("spec.nodeName", "bed"),
            ("spec.serviceAccountName", "robot"),
            ("status.podIP", "10.200.0.9"),
            ("status.hostIP", "10.200.0.1"),
        ],
    )
    def test_downward_fields(self, path: str, expected: str) -> None:
        assert FACTS.field(path) == expected

    @pytest.mark.parametrize(
        ("reference", "expected"),
        [
            pytest.param({"resource": "limits.cpu"}, "2", id="rounded up to whole cores"),
            pytest.param({"resource": "limits.cpu", "divisor": "1m"}, "1500", id="in thousandths"),
            pytest.param({"resource": "limits.memory", "divisor": "1Mi"}, "2048", id="in mebibytes"),
            pytest.param({"resource": "requests.memory"}, "0", id="not set"),
        ],
    )
    def test_downward_resources(self, reference: Object, expected: str) -> None:
        assert FACTS.resource(reference, container="c") == expected

    @pytest.mark.parametrize(
        ("text", "value"), [("1", 1), ("500m", 0.5), ("2Ki", 2048), ("3M", 3e6), ("1e3", 1000), ("4Ti", 4 * 2**40)]
    )
    def test_quantities(self, text: str, value: float) -> None:
        assert float(quantity_of(text)) == value


TABLE = r"""
- match: ^(docker\.io/)?vllm/vllm-openai(:|@|$)
  command: [vllm, serve]
  args: [default-model]
  env: {PORT: 8000}
  append: [--host, $(POD_IP)]
- match: ^vllm/
  command: [other]
"""


class TestImages:
    def test_the_first_match_wins(self, tmp_path: Path) -> None:
        path = tmp_path / "images.yaml"
        path.write_text(TABLE)
        table = ImageTable(path)
        assert table.find("docker.io/vllm/vllm-openai:v0.11.0").command == ("vllm", "serve")
        assert table.find("vllm/vllm-openai-cpu").command == ("other",)
        assert table.find("vllm/vllm-openai:v1").env == {"PORT": "8000"}

    def test_an_unknown_image_cannot_be_pulled_until_the_file_knows_it(self, tmp_path: Path) -> None:
        path = tmp_path / "images.yaml"
        path.write_text(TABLE)
        table = ImageTable(path)
        with pytest.raises(Unstartable, match="nginx") as caught:
            table.find("nginx")
        assert caught.value.reason == "ErrImagePull"
        path.write_text(TABLE + "- {match: nginx, command: [web]}\n")
        assert table.find("nginx").command == ("web",)

    @pytest.mark.parametrize(
        ("container", "expected"),
        [
            pytest.param({}, ["run", "a", "--host", "h"], id="as the image says"),
            pytest.param({"args": ["b"]}, ["run", "b", "--host", "h"], id="own arguments replace the default ones"),
            pytest.param({"command": ["sh"]}, ["sh"], id="an own command gets neither arguments nor additions"),
            pytest.param({"command": ["sh"], "args": ["-c"]}, ["sh", "-c"], id="own command and arguments"),
        ],
    )
    def test_command_line(self, container: Object, expected: list[str]) -> None:
        image = Image(match=".", command=("run",), args=("a",), append=("--host", "h"))
        assert image.command_line(container) == expected

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            pytest.param("- {match: a}", "row 1 needs", id="no command"),
            pytest.param("- {match: a, command: [b], entrypoint: c}", "row 1 needs", id="a key that nobody knows"),
            pytest.param("- {match: '(', command: [b]}", "no regular expression", id="a broken expression"),
            pytest.param("match: a", "a list of rows", id="no list"),
            pytest.param("- {", "flow", id="no YAML"),
        ],
    )
    def test_a_wrong_table_says_where(self, text: str, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            parse_images(text)


class TestLogs:
    def write(self, path: Path, *chunks: tuple[str, bytes]) -> list[bytes]:
        log = LogFile(path)
        for number, (stream, data) in enumerate(chunks):
            log.feed(stream, data, now=NOW + timedelta(seconds=number))
        log.close(now=NOW + timedelta(seconds=len(chunks)))
        return path.read_bytes().splitlines(keepends=True)

    def test_lines_are_put_together_for_each_stream(self, tmp_path: Path) -> None:
        lines = self.write(
            tmp_path / "0.log", ("stdout", b"one\ntw"), ("stderr", b"err\n"), ("stdout", b"o\n"), ("stdout", b"end")
        )
        assert lines == [
            b"2026-01-02T03:04:05.678901000Z stdout F one\n",
            b"2026-01-02T03:04:06.678901000Z stderr F err\n",
            b"2026-01-02T03:04:07.678901000Z stdout F two\n",
            b"2026-01-02T03:04:09.678901000Z stdout F end\n",
        ]

    def test_a_line_without_end_comes_back_whole(self, tmp_path: Path) -> None:
        long = b"x" * 40_000
        lines = self.write(tmp_path / "0.log", ("stdout", long + b"\nnext\n"), ("stdout", long))
        assert b"".join(shown(lines, LogQuery())) == long + b"\nnext\n" + long + b"\n"

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            pytest.param({}, b"a\nb\nc\n", id="everything"),
            pytest.param({"tailLines": "2"}, b"b\nc\n", id="the last two"),
            pytest.param({"tailLines": "0"}, b"", id="none"),
            pytest.param({"tailLines": "9"}, b"a\nb\nc\n", id="more than there are"),
            pytest.param({"sinceSeconds": "2"}, b"b\nc\n", id="not older than two seconds"),
            pytest.param({"sinceTime": "2026-01-02T03:04:07Z"}, b"c\n", id="since a time"),
            pytest.param({"sinceTime": "2026-01-02T04:04:07.123456789+01:00"}, b"c\n", id="with zone and nanoseconds"),
            pytest.param(
                {"timestamps": "true", "tailLines": "1"}, b"2026-01-02T03:04:07.678901000Z c\n", id="with times"
            ),
        ],
    )
    def test_selection(self, query: dict[str, str], expected: bytes, tmp_path: Path) -> None:
        lines = self.write(tmp_path / "0.log", ("stdout", b"a\n"), ("stdout", b"b\n"), ("stdout", b"c\n"))
        parsed = LogQuery.parse(query, now=NOW + timedelta(seconds=3))
        assert b"".join(shown(tail(lines, parsed.tail_lines), parsed)) == expected

    @pytest.mark.parametrize("query", [{"tailLines": "x"}, {"sinceTime": "yesterday"}, {"limitBytes": ""}])
    def test_a_wrong_question_is_refused(self, query: dict[str, str]) -> None:
        with pytest.raises(ValueError, match=r"."):
            LogQuery.parse(query, now=NOW)

    def test_the_fallback_message_is_the_end_of_the_log(self, tmp_path: Path) -> None:
        path = tmp_path / "0.log"
        self.write(path, ("stderr", b"".join(b"line %03d\n" % number for number in range(200))))
        message = fallback_message(path)
        assert message.startswith("line 120\n")
        assert message.endswith("line 199\n")
        self.write(path, ("stderr", b"y" * 5000))
        assert len(fallback_message(path)) == 2048
        assert fallback_message(tmp_path / "none.log") == ""


class Crashing(Container):
    """A container whose instances end at once; the third one is its last."""

    @override
    async def _try_once(self) -> Terminated:
        self.previous: list[Path | None] = [*getattr(self, "previous", ()), self.log_path(previous=True)]
        self._open_log().close(now=NOW)
        self.previous.append(self.log_path(previous=True))
        self._become(end := ended(exit_code=1))
        if len(self.previous) == 6:
            self._stopping.set()
        return end


@pytest.mark.parametrize("base", [0, 0.01], ids=["started again at once", "after a pause"])
async def test_the_previous_log_is_that_of_the_instance_before_also_while_the_next_one_starts(
    base: float, tmp_path: Path
) -> None:
    node = SimpleNamespace(back_off=BackOff(base=base, cap=1))
    context = SimpleNamespace(folder=tmp_path, node=node, pod=POD, changed=lambda: None, emit=lambda **_: None)
    crashing = Crashing({"name": "c", "image": "python:3"}, context=cast(Any, context), policy="Always")
    await crashing.run()
    first, second = (tmp_path / "containers" / "c" / f"{number}.log" for number in range(2))
    assert crashing.previous == [None, None, first, first, second, second]


def ended(exit_code: int = 0, reason: str = "Completed") -> Terminated:
    return Terminated(exit_code=exit_code, reason=reason, started_at=NOW, finished_at=NOW)


def view(state: State, **rest: Any) -> ContainerView:
    return ContainerView(**{"name": "c", "image": "i", "state": state, **rest})


def pod_view(*main: ContainerView, **rest: Any) -> PodView:
    defaults = {"restart_policy": "Always", "init": (), "pod_ip": "10.200.0.9", "host_ip": "10.200.0.1"}
    return PodView(**{**defaults, "main": main, "started_at": NOW, **rest})


RUNNING = Running(started_at=NOW)
CREATING = Waiting(reason="ContainerCreating")
CRASHING = Waiting(reason="CrashLoopBackOff")


class TestStatus:
    @pytest.mark.parametrize(
        ("pod", "phase"),
        [
            pytest.param(pod_view(view(CREATING)), "Pending", id="not started yet"),
            pytest.param(pod_view(view(RUNNING)), "Running", id="running"),
            pytest.param(pod_view(view(RUNNING), view(CREATING)), "Pending", id="one of two not started yet"),
            pytest.param(pod_view(view(CRASHING, last=ended(1))), "Running", id="a crash loop is Running"),
            pytest.param(pod_view(view(ended(1))), "Running", id="between two starts"),
            pytest.param(pod_view(view(ended(0)), ended=True), "Succeeded", id="all done"),
            pytest.param(pod_view(view(ended(0)), view(ended(1)), ended=True), "Failed", id="one failed"),
            pytest.param(pod_view(view(CREATING), init=[view(RUNNING)]), "Pending", id="initializing"),
            pytest.param(pod_view(view(RUNNING), init=[view(ended(0))]), "Running", id="initialized"),
            pytest.param(
                pod_view(view(RUNNING), init=[view(RUNNING, sidecar=True, started=True)]),
                "Running",
                id="with a sidecar",
            ),
            pytest.param(pod_view(view(CREATING), init=[view(ended(1))], ended=True), "Failed", id="init failed"),
        ],
    )
    def test_phase(self, pod: PodView, phase: str) -> None:
        assert pod.phase == phase

    @pytest.mark.parametrize(
        ("pod", "expected"),
        [
            pytest.param(pod_view(view(RUNNING, ready=True)), "TTTT", id="ready"),
            pytest.param(pod_view(view(RUNNING)), "TTFF", id="not ready yet"),
            pytest.param(pod_view(view(RUNNING, ready=True), view(RUNNING)), "TTFF", id="one of two"),
            pytest.param(pod_view(view(CREATING), pod_ip=""), "FTFF", id="without an address"),
            pytest.param(pod_view(view(CREATING), init=[view(RUNNING)]), "TFFF", id="initializing"),
            pytest.param(pod_view(view(ended(0)), ended=True), "TTFF", id="done"),
        ],
    )
    def test_conditions(self, pod: PodView, expected: str) -> None:
        """In order: network, initialized, containers ready, ready."""
        conditions = pod_status(pod, former=[], gates=[], now=NOW)["conditions"]
        assert [each["type"] for each in conditions] == [
            "PodReadyToStartContainers",
            "Initialized",
            "ContainersReady",
            "Ready",
        ]
        assert "".join(each["status"][0] for each in conditions) == expected

    def test_a_readiness_gate_holds_ready_back(self) -> None:
        pod = pod_view(view(RUNNING, ready=True))
        closed = pod_status(pod, former=[], gates=["x/gate"], now=NOW)["conditions"]
        opened = pod_status(pod, former=[{"type": "x/gate", "status": "True"}], gates=["x/gate"], now=NOW)["conditions"]
        assert (closed[2]["status"], closed[3]["status"], closed[3]["reason"]) == (
            "True",
            "False",
            "ReadinessGatesNotReady",
        )
        assert opened[3]["status"] == "True"

    def test_the_time_of_a_condition_moves_only_with_its_status(self) -> None:
        ready = pod_view(view(RUNNING, ready=True))
        first = pod_status(ready, former=[], gates=[], now=NOW)["conditions"]
        later = NOW + timedelta(hours=1)
        assert pod_status(ready, former=first, gates=[], now=later)["conditions"] == first
        unready = pod_status(pod_view(view(RUNNING)), former=first, gates=[], now=later)["conditions"]
        assert unready[1]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
        assert unready[3]["lastTransitionTime"] == "2026-01-02T04:04:05Z"
        assert unready[3]["message"] == "containers with unready status: [c]"

    def test_a_crash_loop_as_kubectl_shows_it(self) -> None:
        crashing = view(
            Waiting(reason="CrashLoopBackOff", message="back-off 8s"),
            last=Terminated(
                exit_code=137,
                reason="OOMKilled",
                message="m",
                started_at=NOW,
                finished_at=NOW,
                container_id="process://1",
            ),
            restart_count=4,
            container_id="process://1",
        )
        status = pod_status(pod_view(crashing), former=[], gates=[], now=NOW)
        assert status["containerStatuses"] == [
            {
                "name": "c",
                "image": "i",
                "imageID": "process://i",
                "containerID": "process://1",
                "ready": False,
                "started": False,
                "restartCount": 4,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 8s"}},
                "lastState": {
                    "terminated": {
                        "exitCode": 137,
                        "reason": "OOMKilled",
                        "message": "m",
                        "startedAt": "2026-01-02T03:04:05Z",
                        "finishedAt": "2026-01-02T03:04:05Z",
                        "containerID": "process://1",
                    }
                },
            }
        ]
        assert status["podIPs"] == [{"$patch": "replace"}, {"ip": "10.200.0.9"}]

    @pytest.mark.parametrize(
        ("policy", "exit_code", "expected"),
        [
            ("Always", 0, True),
            ("Always", 1, True),
            ("OnFailure", 0, False),
            ("OnFailure", 1, True),
            ("Never", 1, False),
        ],
    )
    def test_restart_policy(self, policy: str, exit_code: int, expected: bool) -> None:
        assert restarts(policy, exit_code) is expected


TIMING = ProbeTiming(initial_delay=0, period=0, timeout=1, success_threshold=2, failure_threshold=3)


class TestProbes:
    def test_a_threshold_counts_equal_answers_in_a_row(self) -> None:
        streak = Streak(timing=TIMING)
        answers = [False, False, True, False, False, False, False, True, True, True]
        assert [streak.count(answer) for answer in answers] == [
            *(None, None, None, None, None, False, False),
            *(None, True, True),
        ]

    async def test_a_verdict_carries_the_words_of_the_failure(self) -> None:
        async def refuse(_: float) -> None:
            raise ProbeFailed("connection refused")

        seen = []
        async for verdict in verdicts(TIMING, refuse):
            seen.append((verdict.holds, verdict.message))
            if verdict.holds is False:
                break
        assert seen == [(None, "connection refused")] * 2 + [(False, "connection refused")]

    def test_a_port_may_be_named(self) -> None:
        container = {"ports": [{"name": "http", "containerPort": 8000}]}
        assert port_of({"port": "http"}, container) == 8000
        assert port_of({"port": 9}, container) == 9
        with pytest.raises(ProbeFailed, match="metrics"):
            port_of({"port": "metrics"}, container)


async def test_a_grace_period_can_only_become_shorter() -> None:
    forever = asyncio.create_task(asyncio.Event().wait())
    grace = GracePeriod(3600)
    waiting = asyncio.create_task(grace.outlasts(forever))
    await asyncio.sleep(0)
    grace.shorten(GracePeriod(7200))
    await asyncio.sleep(0)
    assert not waiting.done()
    grace.shorten(GracePeriod(0))
    async with asyncio.timeout(PATIENCE):
        assert await waiting is False
    forever.cancel()


class TestVolumes:
    MOUNTS = (
        Mount(source="/data/v1", target="/etc/app"),
        Mount(source="/data/v2", target="/etc/app/deep"),
        Mount(source="/x", target="/data"),
    )

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            pytest.param("/etc/app/a.yaml", "/data/v1/a.yaml", id="a file"),
            pytest.param("/etc/app", "/data/v1", id="the folder itself"),
            pytest.param("--config=/etc/app/a.yaml", "--config=/data/v1/a.yaml", id="after an equals sign"),
            pytest.param("/etc/app/deep/b", "/data/v2/b", id="the deepest mount wins"),
            pytest.param("/usr/bin:/etc/app", "/usr/bin:/data/v1", id="in a path list"),
            pytest.param("/etc/application", "/etc/application", id="only whole names"),
            pytest.param("/my/etc/app/x", "/my/etc/app/x", id="not inside another path"),
        ],
    )
    def test_paths_are_relocated_where_there_are_no_mounts(self, text: str, expected: str) -> None:
        assert relocated(text, self.MOUNTS) == expected

    @pytest.mark.parametrize(
        ("volume", "expected"),
        [
            pytest.param({"configMap": {"name": "m"}}, True, id="ConfigMap"),
            pytest.param({"emptyDir": {}}, False, id="emptyDir"),
            pytest.param(
                {"projected": {"sources": [{"serviceAccountToken": {}}, {"configMap": {"name": "kube-root-ca.crt"}}]}},
                False,
                id="the token volume that every pod has",
            ),
            pytest.param({"projected": {"sources": [{"configMap": {"name": "m"}}]}}, True, id="projected ConfigMap"),
        ],
    )
    def test_which_pods_are_refreshed_often(self, volume: Object, expected: bool) -> None:
        assert changes({"spec": {"volumes": [{"name": "v", **volume}]}}) is expected


def service(name: str, ip: str, *ports: Object) -> Object:
    return {"metadata": {"namespace": "n", "name": name}, "spec": {"clusterIP": ip, "ports": list(ports)}}


def endpoint_slice(
    owner: str, *, port: int, name: str = "", ready: tuple[str, ...] = (), unready: tuple[str, ...] = ()
) -> Object:
    endpoints = [
        {"addresses": [ip], "conditions": {"ready": is_ready}}
        for ips, is_ready in ((ready, True), (unready, False))
        for ip in ips
    ]
    labels = {"kubernetes.io/service-name": owner}
    return {
        "metadata": {"namespace": "n", "name": f"{owner}-x", "labels": labels},
        "ports": [{"name": name, "port": port}],
        "endpoints": endpoints,
    }


class TestServices:
    def test_only_ready_addresses_of_the_named_port(self) -> None:
        web = service("web", "10.96.1.1", {"name": "http", "port": 80}, {"name": "admin", "port": 81})
        slices = [
            endpoint_slice("web", port=8000, name="http", ready=("10.200.0.3", "10.200.0.2"), unready=("10.200.0.4",)),
            endpoint_slice("other", port=8000, name="http", ready=("10.200.0.9",)),
        ]
        assert routes([web], slices, api_server=("h", 1)) == {
            ("10.96.1.1", 80): [("10.200.0.2", 8000), ("10.200.0.3", 8000)]
        }

    def test_headless_and_external_services_have_no_port(self) -> None:
        slices = [endpoint_slice("web", port=8000, ready=("10.200.0.2",))]
        assert routes([service("web", "None", {"port": 80})], slices, api_server=("h", 1)) == {}
        assert routes([{"metadata": {"namespace": "n", "name": "web"}, "spec": {}}], slices, api_server=("h", 1)) == {}

    def test_the_api_server_is_where_the_bed_put_it(self) -> None:
        kubernetes = {
            "metadata": {"namespace": "default", "name": "kubernetes"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]},
        }
        assert routes([kubernetes], [], api_server=("127.0.0.1", 6443)) == {("10.96.0.1", 443): [("127.0.0.1", 6443)]}

    async def test_a_client_of_a_service_that_closes_is_answered_or_cut_but_never_left(self) -> None:
        front = ("127.0.0.1", free_ports(1)[0])

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        target = await asyncio.start_server(answer, "127.0.0.1", 0)
        pod_address: Address = target.sockets[0].getsockname()
        forwarder = Forwarder()

        async def come() -> None:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(*front)
                await reader.read()
                writer.close()

        for turns in range(12):
            await forwarder.serve({front: [pod_address]})
            async with asyncio.timeout(30), asyncio.TaskGroup() as clients:
                for _ in range(3):
                    clients.create_task(come())
                for _ in range(turns):
                    await asyncio.sleep(0)
                await forwarder.serve({})
        target.close()


def test_a_node_without_gpus_claims_none() -> None:
    assert not [label for label in node_labels("n", gpus=None) if label.startswith("nvidia.com/")]
    assert node_labels("n", gpus="8")["nvidia.com/gpu.count"] == "8"
