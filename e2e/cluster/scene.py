"""What the acts share: the cluster, the images, waiting, and lines on the screen.

Apart from the acts, which say what must happen; here is how it is waited for and read.
Must not: ask the operator anything that a user could not.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from e2e.cluster import manifests
from e2e.cluster.access import Cluster
from e2e.cluster.errors import ActFailed, ClusterError

Seen = TypeVar("Seen")

SERVICE_LABEL: Final = "vllm-autotuner.dev/service"
TRACK_LABEL: Final = "vllm-autotuner.dev/track"
EVERY: Final = 1.0
"""Seconds between two looks: the shortest state that an act waits for lasts some seconds."""
PULL_FAILURES: Final = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What the pods run."""

    operator: str
    engine: str
    prometheus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What an act works with."""

    cluster: Cluster
    images: Images
    say: Callable[[str], None]

    def check(self, held: object, text: str) -> None:
        """Tell that a check held, or end the act."""
        if not held:
            raise ActFailed(text)
        self.say(f"ok   {text}")

    def until(self, what: str, probe: Callable[[], Seen], *, seconds: float) -> Seen:
        """Wait until `probe` returns something true, and return it. Raises ActFailed with why pods do not serve."""
        deadline = time.monotonic() + seconds
        while not (seen := probe()):
            pods = self.cluster.list("pods")
            refuse_unpullable(pods)
            if time.monotonic() > deadline:
                told = [f"{what}: not within {seconds:.0f} s", *obstacles(pods)]
                raise ActFailed("; ".join(told))
            time.sleep(EVERY)
        return seen

    def available(self, deployment: str, *, seconds: float = 180) -> None:
        """Wait until all pods of a Deployment serve, and none of a former template is left."""

        def all_serve() -> bool:
            found = self.cluster.get("deployment", deployment)
            status, wanted = found.get("status", {}), found.get("spec", {}).get("replicas", 1)
            seen = status.get("observedGeneration") == found.get("metadata", {}).get("generation")
            counts = {status.get(f"{kind}Replicas") for kind in ("updated", "available")} | {status.get("replicas")}
            return bool(found) and seen and counts == {wanted}

        self.until(f"Deployment {deployment} serves", all_serve, seconds=seconds)

    def address(self, service: str, port: int) -> str:
        """The URL of a Service by its ClusterIP, which is right in every pod, with or without a DNS of the cluster."""
        ip = self.until(
            f"Service {service} has a ClusterIP",
            lambda: self.cluster.get("service", service).get("spec", {}).get("clusterIP", ""),
            seconds=60,
        )
        return f"http://{f'[{ip}]' if ':' in ip else ip}:{port}"

    def status(self, name: str) -> dict[str, Any]:
        """The status of a VLLMService; empty while there is none."""
        found: dict[str, Any] = self.cluster.get("vllmservice", name).get("status") or {}
        return found

    def status_when(self, name: str, what: str, holds: Callable[[Mapping[str, Any]], object], *, seconds: float) -> Any:
        """Wait until the status of a service says something, and return it; the error tells what it says instead."""
        status: dict[str, Any] = {}

        def probe() -> object:
            nonlocal status
            status = self.status(name)
            return holds(status)

        try:
            self.until(what, probe, seconds=seconds)
        except ActFailed as error:
            raise ActFailed(f"{error}; {brief(status)}") from None
        return status

    def serves(self, service: Mapping[str, Any]) -> None:
        """Apply a VLLMService and wait until it is Ready."""
        name = service["metadata"]["name"]
        self.cluster.apply(service)
        self.status_when(name, f"{name} is Ready", lambda found: condition(found, "Ready") == "True", seconds=180)

    def removed(self, service: str) -> None:
        """Remove a VLLMService that a former run left, with its Deployment: an act is about its first change."""
        self.cluster.delete("vllmservice", service, wait=True)
        gone = f"Deployment {service} is gone"
        self.until(gone, lambda: not self.cluster.get("deployment", service), seconds=60)

    def pods(self, service: str) -> Sequence[dict[str, Any]]:
        """The pods of a service that are Ready and not going away."""
        return [
            pod
            for pod in self.cluster.list("pods", selector=f"{SERVICE_LABEL}={service}")
            if "deletionTimestamp" not in pod["metadata"] and condition(pod.get("status", {}), "Ready") == "True"
        ]

    def own_pods(self, service: str) -> Mapping[str, int]:
        """Of these the service's own, no canary: uid and restarts."""
        return {
            pod["metadata"]["uid"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
            for pod in self.pods(service)
            if pod["metadata"]["labels"][TRACK_LABEL] == "stable"
        }

    def generation(self, deployment: str) -> int:
        """How often the spec of a Deployment was written."""
        return int(self.cluster.get("deployment", deployment)["metadata"]["generation"])

    def max_num_seqs(self, deployment: str) -> int:
        """The value in a Deployment's pod template."""
        template = self.cluster.get("deployment", deployment)["spec"]["template"]
        args: list[str] = template["spec"]["containers"][0]["args"]
        return next(int(word.partition("=")[2]) for word in args if word.startswith("--max-num-seqs="))

    def endpoint_answers(self, service: str) -> None:
        """Wait until a request gets through the Service: its endpoints follow the pods in their own time."""

        def answered() -> object:
            with suppress(ClusterError):
                return self.cluster.ask(service, manifests.ENGINE_PORT, "/v1/models")
            return None

        self.until(f"an endpoint of Service {service} answers", answered, seconds=60)

    def answers(self, service: str) -> None:
        """Check that the service answers a request for a completion."""
        body = {"model": manifests.MODEL, "prompt": "hello", "max_tokens": 2}
        answer = self.cluster.ask(service, manifests.ENGINE_PORT, "/v1/completions", body=body)
        self.check(answer.get("choices"), f"{service} answers a request for a completion")

    def explain(self, service: str) -> str:
        """What `vllm-autotuner explain` tells of a service, with the same kubeconfig."""
        command = [sys.executable, "-m", "vllm_autotuner", "explain", service, "-n", self.cluster.namespace]
        done = subprocess.run(
            [*command, "--kubeconfig", str(self.cluster.kubeconfig)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ActFailed(f"vllm-autotuner explain {service}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def prometheus(self, expression: str) -> float | None:
        """The value of the first series that an expression gives; None without any."""
        path = f"/api/v1/query?query={quote(expression)}"
        with suppress(ClusterError):  # it may be starting still
            answer = self.cluster.ask(manifests.PROMETHEUS, manifests.PROMETHEUS_PORT, path)
            if found := answer["data"]["result"]:
                return float(found[0]["value"][1])
        return None

    @contextmanager
    def load(self, service: str, *, clients: int, name: str = "") -> Iterator[None]:
        """Let so many clients talk to a service; `name` tells further ones apart from the first."""
        url = self.address(service, manifests.ENGINE_PORT)
        self.endpoint_answers(service)
        name = name or manifests.load_name(service)
        self.cluster.apply(manifests.load(name, self.images.engine, url=url, clients=clients))
        try:
            self.available(name)
            yield
        finally:
            with suppress(ClusterError):  # what went wrong before is the news
                self.cluster.delete("deployment", name)

    def tally(self, service: str) -> Mapping[str, int]:
        """What the load on a service has counted so far: sent, succeeded, failed."""
        deployment = f"deployment/{manifests.load_name(service)}"
        line = self.cluster.kubectl("logs", deployment, "-n", self.cluster.namespace, "--tail=1").strip()
        found: dict[str, int] = json.loads(line)
        return found


def refuse_unpullable(pods: Sequence[Mapping[str, Any]]) -> None:
    """Raise ActFailed where an image cannot be pulled: waiting does not help."""
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses", []):
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason") in PULL_FAILURES:
                raise ActFailed(
                    f"the cluster cannot pull {container['image']} ({waiting.get('message', waiting['reason'])}): "
                    "push it to a registry that the cluster reaches and name it with --image, --engine-image or "
                    "--prometheus-image; into kind it is loaded by `kind load docker-image`"
                )


def obstacles(pods: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """What keeps pods from serving: the words of the scheduler, and of containers that wait to be started again."""
    found = []
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        found += [
            f"pod {name} is not scheduled: {each.get('message', 'no reason given')}"
            for each in status.get("conditions", [])
            if each["type"] == "PodScheduled" and each["status"] == "False"
        ]
        found += [
            f"pod {name}: {waiting['reason']}: {waiting.get('message', 'no reason given')}{_ended(each)}"
            for each in status.get("containerStatuses", [])
            if (waiting := each.get("state", {}).get("waiting")) and waiting.get("reason") != "ContainerCreating"
        ]
    return found


def _ended(container: Mapping[str, Any]) -> str:
    """How it ended the last time: a container that cannot be started at all has no log to look into."""
    last = container.get("lastState", {}).get("terminated")
    if not last:
        return ""
    why = last.get("message", "").strip()[-300:]
    return f"; it ended with {last.get('exitCode')} ({last.get('reason', 'no reason')}){f': {why}' if why else ''}"


def condition(status: Mapping[str, Any], kind: str) -> str:
    """The status of one condition: True, False, Unknown, or empty when it is absent."""
    return next((str(each["status"]) for each in status.get("conditions", []) if each["type"] == kind), "")


def brief(status: Mapping[str, Any]) -> str:
    """The parts of a status that explain a failure."""
    diagnosis, change = status.get("diagnosis", {}), status.get("activeChange") or {}
    return (
        f"diagnosis {diagnosis.get('class')} ({diagnosis.get('message')}); "
        f"change {change.get('state')} ({change.get('stateReason')})"
    )


def in_words(seconds: float | None) -> str:
    """A duration as text."""
    return "unknown" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
