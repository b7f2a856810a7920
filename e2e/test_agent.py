"""The process node against the real control plane: what a kubelet promises, as Deployments and kubectl see it."""

import http.client
import json
import re
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from e2e.bed import AGENT, DEFAULT_IMAGES, Bed
from e2e.control_plane import API_SERVER
from e2e.errors import CommandError
from e2e.node_client import NodeClient
from e2e.processes import PATIENCE, identify

Object = dict[str, Any]
Seen = TypeVar("Seen")

IMAGE = "python:3.12"
SERVE = [
    *("-m", "http.server", "8000", "--bind", "$(POD_IP)"),
    *("--directory", "/usr"),  # any folder that is always there
]
PATIENTLY = {"periodSeconds": 1, "timeoutSeconds": 10}
"""Asked often, and given the time that a busy machine takes to answer, or to start the command that is asked."""
READY_HTTP = {"httpGet": {"path": "/", "port": "http"}, **PATIENTLY}
ANSWER_NAME = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = os.environ["HOSTNAME"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer((os.environ["POD_IP"], 8000), Handler).serve_forever()
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(3600)
"""
SLEEP = ["-c", "import time; time.sleep(3600)"]


def eventually(look: Callable[[], Seen], until: Callable[[Seen], object], *, seconds: float = PATIENCE) -> Seen:
    """Look again and again until it is as wanted. Fails with what was seen last."""
    deadline = time.monotonic() + seconds
    while not until(seen := look()):
        assert time.monotonic() < deadline, f"after {seconds:g} s still:\n{json.dumps(seen, indent=1, default=str)}"
        time.sleep(0.05)
    return seen


def container(*args: str, name: str = "c", **rest: Any) -> Object:
    return {"name": name, "image": IMAGE, "args": list(args), **rest}


def pod(namespace: str, name: str, *containers: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 5, "containers": list(containers), **spec},
    }


def deployment(namespace: str, name: str, template: Object, *, replicas: int = 1) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": template["metadata"] | {"namespace": None}, "spec": template["spec"]},
        },
    }


def get(bed: Bed, namespace: str, kind: str, name: str) -> Object:
    answer: Object = json.loads(
        bed.kubectl("-n", namespace, "get", kind, name, "-o", "json", "--ignore-not-found") or "{}"
    )
    return answer


def status(bed: Bed, namespace: str, name: str) -> Object:
    seen: Object = get(bed, namespace, "pod", name).get("status", {})
    return seen


def first_container(seen: Object) -> Object:
    found: Object = (seen.get("containerStatuses") or [{}])[0]
    return found


def is_ready(seen: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in seen.get("conditions", []))


def ready_is(wanted: bool) -> Callable[[Object], bool]:
    return lambda seen: is_ready(seen) is wanted


def ends_with(text: str) -> Callable[[str], bool]:
    return lambda seen: seen.endswith(text)


def events(bed: Bed, namespace: str) -> list[tuple[str, str]]:
    items = json.loads(bed.kubectl("-n", namespace, "get", "events", "-o", "json"))["items"]
    return [(item["reason"], item["message"]) for item in items]


def node(bed: Bed) -> NodeClient:
    return NodeClient.of(json.loads(bed.kubectl("get", "node", "bed", "-o", "json")))


def running_pid(bed: Bed, namespace: str, name: str) -> int:
    return node(bed).running_pid(namespace, name)


def logs(bed: Bed, namespace: str, *arguments: str) -> str:
    try:
        return bed.kubectl("-n", namespace, "logs", *arguments)
    except CommandError as error:
        return str(error)


class TestDeployments:
    def template(self, namespace: str, **rest: Any) -> Object:
        return pod(
            namespace,
            "web",
            container(*SERVE, ports=[{"name": "http", "containerPort": 8000}], readinessProbe=READY_HTTP, **rest),
        )

    def test_becomes_available_and_rolls_without_a_gap(self, bed: Bed, namespace: str) -> None:
        def look() -> Object:
            found: Object = get(bed, namespace, "deployment", "web")["status"]
            ready_seen.append(found.get("readyReplicas", 0))
            return found | {"pods": bed.kubectl("-n", namespace, "get", "pods", "-o", "name").split()}

        ready_seen: list[int] = []
        bed.apply([deployment(namespace, "web", self.template(namespace))])
        first = eventually(look, lambda seen: seen.get("availableReplicas") == 1)["pods"]
        ready_seen.clear()
        changed = self.template(namespace, env=[{"name": "VERSION", "value": "2"}])
        bed.apply([deployment(namespace, "web", changed)])
        rolled = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
        eventually(
            look, lambda seen: rolled.items() <= seen.items() and len(seen["pods"]) == 1 and seen["pods"] != first
        )
        assert min(ready_seen) == 1, "while rolling, one replica was always ready"

    def test_the_ninth_gpu_pod_has_to_wait(self, bed: Bed, namespace: str) -> None:
        template = pod(
            namespace,
            "gpu",
            container(*SLEEP, resources={"limits": {"nvidia.com/gpu": "1"}}),
            nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            terminationGracePeriodSeconds=0,
        )
        bed.apply([deployment(namespace, "gpu", template, replicas=9)])

        def phases() -> list[str]:
            words = bed.kubectl("-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].status.phase}")
            return sorted(words.split())

        eventually(phases, lambda seen: seen == ["Pending", *["Running"] * 8])
        pending = json.loads(bed.kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]
        reasons = [
            condition.get("reason")
            for item in pending
            for condition in item["status"]["conditions"]
            if "reason" in condition
        ]
        assert "Unschedulable" in reasons
        # Its GPUs are needed by the next test, and a namespace takes a while to go.
        bed.kubectl("-n", namespace, "delete", "deployment", "gpu", "--cascade=foreground")


class TestCrashes:
    def test_a_crash_loop_tells_what_happened(self, bed: Bed, namespace: str) -> None:
        crash = (
            "import os, sys; print('start'); print('Engine core initialization failed', file=sys.stderr); sys.exit(3)"
        )
        bed.apply(
            [pod(namespace, "crash", container("-u", "-c", crash, terminationMessagePolicy="FallbackToLogsOnError"))]
        )
        seen = eventually(
            lambda: status(bed, namespace, "crash"),
            lambda seen: (
                first_container(seen).get("restartCount", 0) >= 2
                and first_container(seen)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
            ),
        )
        last = first_container(seen)["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (3, "Error")
        assert sorted(last["message"].splitlines()) == ["Engine core initialization failed", "start"]
        assert first_container(seen)["state"]["waiting"]["message"].startswith("back-off ")
        assert seen["phase"] == "Running"
        assert sorted(logs(bed, namespace, "crash", "--previous").splitlines()) == sorted(last["message"].splitlines())
        # The node posts its Events beside the statuses: one may come later.
        eventually(lambda: events(bed, namespace), lambda seen: "BackOff" in [reason for reason, _ in seen])

    def test_a_killed_process_is_an_error_137(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "victim", container(*SLEEP))])
        node(bed).kill(namespace, "victim")
        seen = eventually(
            lambda: status(bed, namespace, "victim"),
            lambda seen: (
                "running" in first_container(seen).get("state", {}) and first_container(seen)["restartCount"] == 1
            ),
        )
        last = first_container(seen)["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (137, "Error")

    def test_the_oom_killer_can_be_played(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "big", container(*SLEEP))])
        running_pid(bed, namespace, "big")
        node(bed).run_out_of_memory(namespace, "big", "c")
        seen = eventually(
            lambda: status(bed, namespace, "big"),
            lambda seen: "terminated" in first_container(seen).get("lastState", {}),
        )
        last = first_container(seen)["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (137, "OOMKilled")

    def test_a_command_that_does_not_exist(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "typo", container(command=["/no/such/program"]))])
        seen = eventually(
            lambda: status(bed, namespace, "typo"),
            lambda seen: "terminated" in first_container(seen).get("lastState", {}),
        )
        last = first_container(seen)["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (128, "StartError")
        assert "/no/such/program" in last["message"]

    def test_what_a_container_started_ends_with_it(self, bed: Bed, namespace: str) -> None:
        fork = (
            "import subprocess, time\n"
            "child = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
            "print('child', child.pid, flush=True)\n"
            "time.sleep(3600)\n"
        )
        bed.apply([pod(namespace, "parent", container("-c", fork))])
        words = eventually(lambda: logs(bed, namespace, "parent"), lambda text: text.startswith("child "))
        child = int(words.split()[1])
        assert identify(child) is not None
        node(bed).kill(namespace, "parent")
        eventually(lambda: identify(child), lambda seen: seen is None)

    def test_pods_that_are_meant_to_end(self, bed: Bed, namespace: str) -> None:
        bed.apply(
            [
                pod(namespace, "good", container("-c", "pass"), restartPolicy="Never"),
                pod(namespace, "bad", container("-c", "raise SystemExit(9)"), restartPolicy="Never"),
            ]
        )
        good = eventually(lambda: status(bed, namespace, "good"), lambda seen: seen.get("phase") == "Succeeded")
        bad = eventually(lambda: status(bed, namespace, "bad"), lambda seen: seen.get("phase") == "Failed")
        assert first_container(good)["state"]["terminated"]["reason"] == "Completed"
        assert first_container(bad)["state"]["terminated"]["exitCode"] == 9

    def test_an_unknown_image_waits_until_the_table_knows_it(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "new", container(*SLEEP) | {"image": "example.com/new:1"})])
        seen = eventually(
            lambda: status(bed, namespace, "new"), lambda seen: "waiting" in first_container(seen).get("state", {})
        )
        eventually(
            lambda: status(bed, namespace, "new"),
            lambda seen: first_container(seen)["state"]["waiting"]["reason"] == "ErrImagePull",
        )
        assert seen["phase"] == "Pending"
        bed.set_images([*DEFAULT_IMAGES, {"match": r"^example\.com/new", "command": [sys.executable]}])
        try:
            eventually(lambda: status(bed, namespace, "new"), is_ready)
        finally:
            bed.set_images(DEFAULT_IMAGES)


class TestProbes:
    def test_startup_gates_readiness_and_liveness(self, bed: Bed, namespace: str, tmp_path: Path) -> None:
        """The container is alive only while its file is there: liveness alone would kill it before it is written."""
        flag = tmp_path / "flag"
        exists = {"exec": {"command": [sys.executable, "-c", f"open({str(flag)!r})"]}, **PATIENTLY}
        probes: Object = {
            "startupProbe": exists | {"failureThreshold": 100},
            "readinessProbe": exists,
            "livenessProbe": exists | {"failureThreshold": 1},
        }
        bed.apply([pod(namespace, "slow", container(*SLEEP, **probes))])
        eventually(lambda: events(bed, namespace), lambda seen: any("Startup probe failed" in text for _, text in seen))
        before = first_container(status(bed, namespace, "slow"))
        assert (before["started"], before["ready"], before["restartCount"]) == (False, False, 0)
        flag.touch()
        after = first_container(eventually(lambda: status(bed, namespace, "slow"), is_ready))
        assert (after["started"], after["ready"], after["restartCount"]) == (True, True, 0)
        flag.unlink()
        dead = eventually(
            lambda: status(bed, namespace, "slow"), lambda seen: first_container(seen).get("restartCount", 0) >= 1
        )
        assert first_container(dead)["lastState"]["terminated"]["exitCode"] == 143
        assert not is_ready(dead)
        killing = ("Killing", "Container c failed liveness probe, will be restarted")
        eventually(lambda: events(bed, namespace), lambda seen: killing in seen)

    def test_readiness_follows_the_answer(self, bed: Bed, namespace: str, tmp_path: Path) -> None:
        page = tmp_path / "page"
        serve = [*SERVE[:-1], str(tmp_path)]
        probe = {"httpGet": {"path": "/page", "port": 8000}, "failureThreshold": 1, **PATIENTLY}
        bed.apply([pod(namespace, "web", container(*serve, readinessProbe=probe))])
        for there in (True, False, True):
            page.touch() if there else page.unlink()
            eventually(lambda: status(bed, namespace, "web"), ready_is(there))
        assert first_container(status(bed, namespace, "web"))["restartCount"] == 0
        eventually(lambda: events(bed, namespace), lambda seen: any("statuscode: 404" in text for _, text in seen))

    def test_a_port_that_opens(self, bed: Bed, namespace: str) -> None:
        probe = {"tcpSocket": {"port": 8000}, **PATIENTLY}
        bed.apply([pod(namespace, "web", container(*SERVE, readinessProbe=probe))])
        eventually(lambda: status(bed, namespace, "web"), is_ready)


class TestEnds:
    def delete(self, bed: Bed, namespace: str, name: str, *arguments: str) -> float:
        begun = time.monotonic()
        bed.kubectl("-n", namespace, "delete", "pod", name, "--wait=true", *arguments)
        return time.monotonic() - begun

    def test_a_pod_may_say_goodbye(self, bed: Bed, namespace: str, tmp_path: Path) -> None:
        polite = (
            "import pathlib, signal, sys, time\n"
            f"note = pathlib.Path({str(tmp_path)!r}) / 'note'\n"
            "signal.signal(signal.SIGTERM, lambda *_: (note.write_text(note.read_text() + 'term'), sys.exit(0)))\n"
            "print('ready', flush=True)\n"
            "time.sleep(3600)\n"
        )
        hook = {"preStop": {"exec": {"command": ["sh", "-c", f"printf hook- > {tmp_path}/note"]}}}
        bed.apply([pod(namespace, "polite", container("-c", polite, lifecycle=hook), terminationGracePeriodSeconds=60)])
        eventually(lambda: logs(bed, namespace, "polite"), lambda text: text == "ready\n")
        assert self.delete(bed, namespace, "polite") < 60
        assert (tmp_path / "note").read_text() == "hook-term"

    def test_a_pod_that_does_not_listen_is_killed(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "deaf", container("-c", DEAF), terminationGracePeriodSeconds=2)])
        eventually(lambda: logs(bed, namespace, "deaf"), lambda text: text == "deaf\n")
        pid = running_pid(bed, namespace, "deaf")
        assert 2 <= self.delete(bed, namespace, "deaf") < 30
        assert identify(pid) is None
        # The last to go are its address and its folder; a few tests later they would be missed.
        left = [bed.state_dir / "data/node/pods", *([Path("/run/netns")] if bed.mode == "namespace" else [])]
        count = len(json.loads(bed.kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"])
        eventually(lambda: [len(list(each.iterdir())) for each in left], lambda seen: max(seen) <= count)

    def test_a_second_deletion_may_shorten_the_time(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "deaf", container("-c", DEAF), terminationGracePeriodSeconds=600)])
        eventually(lambda: logs(bed, namespace, "deaf"), lambda text: text == "deaf\n")
        bed.kubectl("-n", namespace, "delete", "pod", "deaf", "--wait=false")
        assert self.delete(bed, namespace, "deaf", "--grace-period=1") < PATIENCE

    def test_a_forced_deletion_kills_at_once(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "gone", container(*SLEEP), terminationGracePeriodSeconds=600)])
        pid = running_pid(bed, namespace, "gone")
        self.delete(bed, namespace, "gone", "--grace-period=0", "--force")
        eventually(lambda: identify(pid), lambda seen: seen is None)

    def test_a_pod_in_back_off_goes_at_once(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "crash", container("-c", "raise SystemExit(1)"), terminationGracePeriodSeconds=600)])
        eventually(
            lambda: status(bed, namespace, "crash"),
            lambda seen: (
                "waiting" in first_container(seen).get("state", {}) and first_container(seen)["restartCount"] > 0
            ),
        )
        assert self.delete(bed, namespace, "crash") < PATIENCE


class TestConfiguration:
    def test_environment_from_everywhere(self, bed: Bed, namespace: str) -> None:
        env = [
            {"name": "PLAIN", "value": "$(PREFIX_one)!"},
            {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "word"}}},
            {"name": "FROM_MAP", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "one"}}},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "MY_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]
        show = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]), flush=True)"
        bed.apply(
            [
                pod(
                    namespace,
                    "show",
                    container(
                        *("-c", show, "$(FROM_MAP)", "$$(FROM_MAP)", "$(POD_IP)"),
                        env=env,
                        envFrom=[{"prefix": "PREFIX_", "configMapRef": {"name": "map"}}],
                    ),
                    restartPolicy="Never",
                )
            ]
        )
        # Before its ConfigMap exists, the pod has to wait and to say why.
        eventually(
            lambda: status(bed, namespace, "show"),
            lambda seen: (
                first_container(seen).get("state", {}).get("waiting", {}).get("reason") == "CreateContainerConfigError"
            ),
        )
        bed.apply(
            [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named("map", namespace), "data": {"one": "1"}},
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": _named("secret", namespace),
                    "stringData": {"word": "w"},
                },
            ]
        )
        seen = eventually(lambda: status(bed, namespace, "show"), lambda seen: seen.get("phase") == "Succeeded")
        variables, arguments = json.loads(logs(bed, namespace, "show"))
        expected = {
            "PLAIN": "1!",
            "PREFIX_one": "1",
            "FROM_SECRET": "w",
            "FROM_MAP": "1",
            "NAME": "show",
            "HOSTNAME": "show",
            "MY_IP": seen["podIP"],
            "POD_IP": seen["podIP"],
            "NODE": "bed",
        }
        assert {name: variables.get(name) for name in expected} == expected
        assert arguments == ["1", "$(FROM_MAP)", seen["podIP"]]

    def test_volumes_lie_where_the_manifest_puts_them(self, bed: Bed, namespace: str) -> None:
        """In loopback mode their paths in arguments are replaced, so the same manifest works."""
        follow = (
            "import pathlib, sys, time\n"
            "folder, note = map(pathlib.Path, sys.argv[1:])\n"
            "note.write_text('written')\n"
            "last = None\n"
            "while True:\n"
            "    word = (folder / 'word').read_text()\n"
            "    if word != last:\n"
            "        print(word, note.read_text(), (folder / 'deep/label').read_text(), flush=True)\n"
            "    last = word\n"
            "    time.sleep(0.05)\n"
        )
        volumes: list[Object] = [
            {
                "name": "config",
                "projected": {
                    "sources": [
                        {"configMap": {"name": "map"}},
                        {
                            "downwardAPI": {
                                "items": [{"path": "deep/label", "fieldRef": {"fieldPath": "metadata.labels['app']"}}]
                            }
                        },
                    ]
                },
            },
            {"name": "scratch", "emptyDir": {}},
        ]
        mounts = [
            {"name": "config", "mountPath": "/etc/process-node-test/config"},
            {"name": "scratch", "mountPath": "/process-node-test"},
            # Where a checkout may lie, and the interpreter.
            {"name": "scratch", "mountPath": "/tmp"},
        ]
        words = ["-c", follow, "/etc/process-node-test/config", "/process-node-test/note"]
        # Without its ConfigMap the pod has to wait.
        bed.apply([pod(namespace, "reader", container(*words, volumeMounts=mounts), volumes=volumes)])
        eventually(lambda: events(bed, namespace), lambda seen: "FailedMount" in [reason for reason, _ in seen])
        for text in ("first", "second"):
            data = {"word": text}
            bed.apply([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named("map", namespace), "data": data}])
            eventually(
                lambda: logs(bed, namespace, "reader"),
                ends_with(f"{text} written reader\n"),
            )
        assert not Path("/process-node-test").exists()
        assert not Path("/etc/process-node-test").exists()

    def test_a_pod_has_its_own_rights_and_no_more(self, bed: Bed, namespace: str) -> None:
        ask = (
            "import os\n"
            "from kubernetes import client, config\n"
            "config.load_kube_config() if 'KUBECONFIG' in os.environ else config.load_incluster_config()\n"
            "core = client.CoreV1Api()\n"
            f"print('pods', [item.metadata.name for item in core.list_namespaced_pod({namespace!r}).items])\n"
            "try:\n"
            f"    core.list_namespaced_secret({namespace!r})\n"
            "except client.ApiException as error:\n"
            "    print('secrets', error.status)\n"
        )
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        subject = {"kind": "ServiceAccount", "name": "robot", "namespace": namespace}
        rbac = "rbac.authorization.k8s.io"
        bed.apply(
            [
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _named("robot", namespace)},
                {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": _named("robot", namespace), "rules": rules},
                {
                    "apiVersion": f"{rbac}/v1",
                    "kind": "RoleBinding",
                    "metadata": _named("robot", namespace),
                    "subjects": [subject],
                    "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "robot"},
                },
                pod(namespace, "asker", container("-c", ask), serviceAccountName="robot", restartPolicy="Never"),
            ]
        )
        eventually(lambda: status(bed, namespace, "asker"), lambda seen: seen.get("phase") in {"Succeeded", "Failed"})
        assert logs(bed, namespace, "asker") == "pods ['asker']\nsecrets 403\n"

    def test_init_containers_run_in_order_and_before_the_others(self, bed: Bed, namespace: str) -> None:
        init = [
            container("-c", "print('one')", name="one"),
            # Twice: the first time it fails and is run again.
            container("-c", "import pathlib as p; p.Path('x').exists() or (p.Path('x').touch(), exit(1))", name="two"),
            container(*SLEEP, name="side", restartPolicy="Always"),
        ]
        bed.apply([pod(namespace, "app", container(*SLEEP), initContainers=init)])
        seen = eventually(lambda: status(bed, namespace, "app"), is_ready)
        one, two, side = seen["initContainerStatuses"]
        assert [one["restartCount"], two["restartCount"], side["restartCount"]] == [0, 1, 0]
        assert one["state"]["terminated"]["finishedAt"] <= two["state"]["terminated"]["finishedAt"]
        assert "running" in side["state"]
        assert logs(bed, namespace, "app", "-c", "one") == "one\n"

    def test_a_failed_init_container_fails_the_pod(self, bed: Bed, namespace: str) -> None:
        init = [container("-c", "exit(4)", name="one")]
        bed.apply([pod(namespace, "app", container(*SLEEP), initContainers=init, restartPolicy="Never")])
        seen = eventually(lambda: status(bed, namespace, "app"), lambda seen: seen.get("phase") == "Failed")
        assert first_container(seen)["state"]["waiting"]["reason"] == "PodInitializing"


def test_the_termination_log_is_the_message(bed: Bed, namespace: str) -> None:
    path = "os.environ.get('TERMINATION_LOG', '/dev/termination-log')"
    write = f"import os; open({path}, 'w').write('out of blocks'); exit(1)"
    bed.apply([pod(namespace, "last-words", container("-c", write), restartPolicy="Never")])
    seen = eventually(lambda: status(bed, namespace, "last-words"), lambda seen: seen.get("phase") == "Failed")
    assert first_container(seen)["state"]["terminated"]["message"] == "out of blocks"
    assert not Path("/dev/termination-log").exists()


class TestLogs:
    def test_what_kubectl_may_ask(self, bed: Bed, namespace: str) -> None:
        talk = "import time\nfor n in range(5): print('line', n, flush=True); time.sleep(0.3)\ntime.sleep(3600)"
        bed.apply([pod(namespace, "talker", container("-c", talk))])
        everything = "".join(f"line {number}\n" for number in range(5))
        eventually(lambda: logs(bed, namespace, "talker"), lambda text: text == everything)
        assert logs(bed, namespace, "talker", "--tail=2") == "line 3\nline 4\n"
        assert logs(bed, namespace, "talker", "--limit-bytes=9") == "line 0\nli"
        stamped = logs(bed, namespace, "talker", "--timestamps").splitlines()
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z line \d", line) for line in stamped)
        # kubectl asks in whole seconds: the lines of the last line's second, which may be all of them.
        second = stamped[-1].split(".")[0]
        expected = [line.split(" ", 1)[1] for line in stamped if line >= second]
        assert logs(bed, namespace, "talker", f"--since-time={second}Z").splitlines() == expected
        assert 'previous terminated container "c" in pod "talker" not found' in logs(
            bed, namespace, "talker", "--previous"
        )

    def test_a_follower_sees_everything_until_the_end(self, bed: Bed, namespace: str) -> None:
        talk = "import time\nfor n in range(4): print('line', n, flush=True); time.sleep(0.4)"
        bed.apply([pod(namespace, "talker", container("-c", talk), restartPolicy="Never")])
        running_pid(bed, namespace, "talker")
        assert logs(bed, namespace, "talker", "-f") == "".join(f"line {number}\n" for number in range(4))


class TestServices:
    @pytest.fixture(autouse=True)
    def _only_where_pods_have_addresses(self, bed: Bed) -> None:
        if bed.mode == "loopback":
            pytest.skip("loopback mode has no Services: EndpointSlices refuse loopback addresses")

    def test_a_service_reaches_every_ready_pod_and_no_other(self, bed: Bed, namespace: str) -> None:
        template = pod(
            namespace,
            "web",
            container("-c", ANSWER_NAME, ports=[{"name": "http", "containerPort": 8000}], readinessProbe=READY_HTTP),
        )
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _named("web", namespace),
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
        }
        bed.apply([service, deployment(namespace, "web", template, replicas=2)])
        address = get(bed, namespace, "service", "web")["spec"]["clusterIP"]

        def answers() -> set[str]:
            return {_fetch(f"http://{address}") for _ in range(6)}

        both = eventually(answers, lambda seen: len(seen) == 2 and "" not in seen)
        assert all(name.startswith("web-") for name in both)
        fetch = f"import urllib.request as u; print(u.urlopen('http://{address}', timeout=60).read().decode())"
        bed.apply([pod(namespace, "client", container("-c", fetch), restartPolicy="Never")])
        eventually(lambda: status(bed, namespace, "client"), lambda seen: seen.get("phase") in {"Succeeded", "Failed"})
        assert logs(bed, namespace, "client").strip() in both
        bed.kubectl("-n", namespace, "scale", "deployment", "web", "--replicas=0")
        eventually(answers, lambda seen: seen == {""})

    def test_two_pods_may_listen_on_the_same_port_of_any_address(self, bed: Bed, namespace: str) -> None:
        anywhere = ["-m", "http.server", "8000", "--directory", "/usr"]
        web = container(*anywhere, ports=[{"name": "http", "containerPort": 8000}], readinessProbe=READY_HTTP)
        bed.apply([pod(namespace, "one", web), pod(namespace, "two", web)])
        eventually(lambda: status(bed, namespace, "one"), is_ready)
        eventually(lambda: status(bed, namespace, "two"), is_ready)


class TestNode:
    @pytest_asyncio.fixture(autouse=True, loop_scope="session")
    async def for_the_next_test(self, bed: Bed) -> AsyncIterator[None]:
        """Start the node again when a test failed while it was down: every test after it needs one."""
        yield
        if AGENT not in bed.processes.names():
            await bed.start_agent()

    async def test_a_crashed_node_comes_back_with_its_pods(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "stays", container(*SLEEP))])
        eventually(lambda: status(bed, namespace, "stays"), is_ready)
        pid = running_pid(bed, namespace, "stays")
        bed.stop_agent(crash=True)
        eventually(lambda: identify(pid), lambda seen: seen is None)
        await bed.start_agent()
        seen = eventually(
            lambda: status(bed, namespace, "stays"),
            lambda seen: is_ready(seen) and first_container(seen)["restartCount"] == 1,
        )
        assert first_container(seen)["lastState"]["terminated"]["exitCode"] == 137
        assert running_pid(bed, namespace, "stays") != pid

    async def test_a_node_that_stops_in_order_ends_its_containers(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "stays", container(*SLEEP))])
        pid = running_pid(bed, namespace, "stays")
        bed.stop_agent()
        assert identify(pid) is None
        assert status(bed, namespace, "stays")["phase"] == "Running"
        await bed.start_agent()
        running_pid(bed, namespace, "stays")

    async def test_the_node_outlives_an_api_server_that_restarts(self, bed: Bed, namespace: str) -> None:
        bed.apply([pod(namespace, "before", container(*SLEEP))])
        pid = running_pid(bed, namespace, "before")
        bed.processes.restart(API_SERVER)
        await bed.control_plane.wait_api_ready()
        bed.apply([pod(namespace, "after", container(*SLEEP))])
        eventually(lambda: status(bed, namespace, "after"), is_ready)
        assert node(bed).pid(namespace, "before") == pid
        bed.kubectl("-n", namespace, "delete", "pod", "before", "--wait=true")
        assert identify(pid) is None

    def test_what_the_node_says_of_itself(self, bed: Bed) -> None:
        seen = json.loads(bed.kubectl("get", "node", "bed", "-o", "json"))
        assert seen["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert seen["metadata"]["labels"]["vllm-autotuner.dev/process-node"] == "true"
        lease = json.loads(bed.kubectl("-n", "kube-node-lease", "get", "lease", "bed", "-o", "json"))
        assert lease["spec"]["holderIdentity"] == "bed"
        renewed = lease["spec"]["renewTime"]
        eventually(
            lambda: bed.kubectl("-n", "kube-node-lease", "get", "lease", "bed", "-o", "jsonpath={.spec.renewTime}"),
            lambda seen: seen > renewed,
        )


def _named(name: str, namespace: str) -> Mapping[str, str]:
    return {"name": name, "namespace": namespace}


def _fetch(url: str) -> str:
    """Return the answer, empty when the connection is refused, cut because the pod ends in the middle, or silent."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except (OSError, http.client.HTTPException):  # of the former are the URLError, and a TimeoutError while it is read
        return ""
