"""The acts. Each one makes what it needs, waits for its result, reads it where users read it, or fails."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from e2e.cluster import installation, manifests
from e2e.cluster.errors import ActFailed
from e2e.cluster.scene import Scene, condition, in_words

TICKS_SECONDS: Final = 6
"""Three ticks in which nothing may happen: an absence cannot be waited for."""
RAMP_SECONDS: Final = 12
"""Between two groups of clients: more than the window of the metrics."""
SERVICES: Final = ("chat", "batch", "search", "api")
CHANGE_SECONDS: Final = 300
"""From a diagnosis to the end of a change: its phases take a minute and a half, pods have to start beside."""


def install(scene: Scene) -> None:
    """Prometheus and the chart."""
    cluster = scene.cluster
    cluster.apply(*manifests.prometheus(cluster.namespace, scene.images.prometheus))
    scene.available(manifests.PROMETHEUS)
    url = scene.address(manifests.PROMETHEUS, manifests.PROMETHEUS_PORT)
    scene.check(True, f"a Prometheus serves at {url}")
    installation.helm_install(cluster, image=scene.images.operator, prometheus_url=url)
    scene.available(installation.RELEASE)
    scene.check(True, "the operator runs as a pod of its Helm chart, with the chart's ServiceAccount and RBAC")
    scraped = f'up{{pod=~"{installation.RELEASE}-.*"}}'
    scene.until("Prometheus scrapes the operator", lambda: scene.prometheus(scraped), seconds=60)
    scene.check(True, "Prometheus finds the operator's pod by its annotations, and scrapes it")


def serve(scene: Scene) -> None:
    """A VLLMService becomes pods that serve."""
    _chat(scene)
    scene.available("chat")
    scene.check(len(scene.pods("chat")) == manifests.REPLICAS, f"chat has {manifests.REPLICAS} Ready pods")
    scene.endpoint_answers("chat")
    scene.answers("chat")
    scraped = f'count(vllm:num_requests_running{{namespace="{scene.cluster.namespace}",pod=~"chat-.*"}})'
    scene.until("Prometheus scrapes the engines", lambda: scene.prometheus(scraped) == manifests.REPLICAS, seconds=60)
    scene.check(True, f"Prometheus scrapes the {manifests.REPLICAS} engines")


def diagnose(scene: Scene) -> None:
    """In mode Recommend the bottleneck is named, and nothing is changed."""
    _chat(scene)
    generation = scene.generation("chat")
    with scene.load("chat", clients=manifests.CROWD * manifests.REPLICAS):
        status = scene.status_when(
            "chat",
            "the diagnosis is ConcurrencyCapped, with a recommendation for maxNumSeqs",
            lambda found: (
                found.get("diagnosis", {}).get("class") == "ConcurrencyCapped"
                and (found.get("recommendation") or {}).get("knob") == "maxNumSeqs"
            ),
            seconds=120,
        )
        diagnosis, advice = status["diagnosis"], status["recommendation"]
        scene.say(f"{diagnosis['class']}: {diagnosis['message']}")
        scene.say(f"recommendation: maxNumSeqs {advice['current']} -> {advice['recommended']}")
        scene.check(diagnosis["evidence"], "the diagnosis has evidence")
        time.sleep(TICKS_SECONDS)
        same = scene.generation("chat") == generation
        scene.check(same and not scene.status("chat").get("activeChange"), "the Deployment is unchanged")


def canary(scene: Scene) -> None:
    """In mode Automatic the value is tried on a canary, and kept."""
    if scene.status("chat").get("history"):
        scene.removed("chat")
    _chat(scene)
    scene.available("chat")
    generation = scene.generation("chat")
    with scene.load("chat", clients=manifests.CROWD * manifests.REPLICAS):
        scene.cluster.apply(manifests.chat(scene.images.engine, mode="Automatic"))
        ended = _judged_by_canary(scene, "chat", generation=generation)
        old, new = int(ended["fromValue"]), int(ended["toValue"])
        scene.check(ended["outcome"] == "Succeeded", f"maxNumSeqs {old} -> {new} is kept{_why(ended)}")
        before, after = (ended[side]["ttftSeconds"] for side in ("before", "after"))
        scene.check(
            after < before, f"TTFT p95: {in_words(before)} in the baseline, {in_words(after)} in the canary beside it"
        )
        scene.until("the Deployment has the value", lambda: scene.max_num_seqs("chat") == new, seconds=60)
        scene.available("chat")
        scene.check(True, f"each of the {manifests.REPLICAS} pods runs max-num-seqs {new}")
        _trials_are_gone(scene, "chat")
        _told_of_requests(scene, "chat")


def roll_back(scene: Scene) -> None:
    """A change that does harm costs one canary, and is rolled back."""
    scene.removed("batch")
    scene.serves(manifests.batch(scene.images.engine))
    scene.available("batch")
    generation, pods = scene.generation("batch"), scene.own_pods("batch")
    with scene.load("batch", clients=manifests.CROWD * manifests.REPLICAS):
        ended = _judged_by_canary(scene, "batch", generation=generation)
        old, new = int(ended["fromValue"]), int(ended["toValue"])
        scene.check(ended["outcome"] == "RolledBack", f"maxNumSeqs {old} -> {new} is rolled back{_why(ended)}")
        _trials_are_gone(scene, "batch")
        untouched = scene.generation("batch") == generation and scene.max_num_seqs("batch") == old
        scene.check(untouched, f"the Deployment was never written: max-num-seqs {old}")
        scene.check(scene.own_pods("batch") == pods, f"its {len(pods)} pods are the same, and none has restarted")
        remembered = [entry["candidate"] for entry in scene.status("batch").get("failureMemory", [])]
        scene.check(remembered == [f"maxNumSeqs={new}"], f"maxNumSeqs={new} is recorded as a failed value")
        _told_of_requests(scene, "batch")


def in_place(scene: Scene) -> None:
    """Past the TPOT knee max-num-seqs is lowered; a single replica is changed in place, by a pod that replaces it."""
    scene.removed("search")
    scene.serves(manifests.search(scene.images.engine))
    with ExitStack() as crowd:
        for number, clients in enumerate(manifests.RAMP):
            name = f"{manifests.load_name('search')}-{number}"
            crowd.enter_context(scene.load("search", clients=clients, name=name))
            time.sleep(RAMP_SECONDS)
        change = _change_when(scene, "search", "a change of search has begun", lambda change: change.get("strategy"))
        how = "no canary: with a single replica it would get half of the requests"
        scene.check(change["strategy"] == "InPlace", how)
        ended = _ended(scene, "search")
        old, new = int(ended["fromValue"]), int(ended["toValue"])
        scene.check(ended["outcome"] == "Succeeded" and new < old, f"maxNumSeqs {old} -> {new} is kept{_why(ended)}")
        before, after = (ended[side]["tpotSeconds"] for side in ("before", "after"))
        scene.check(
            before > 0.050 >= after, f"TPOT p95 fell from {in_words(before)} to {in_words(after)}, within 50 ms"
        )
        scene.available("search")
        scene.check(scene.max_num_seqs("search") == new, f"the pod runs max-num-seqs {new}")


def scale_out(scene: Scene) -> None:
    """Where no flag may change, requests that wait get replicas."""
    scene.removed("api")
    scene.serves(manifests.api(scene.images.engine))
    with scene.load("api", clients=5 * manifests.MAX_NUM_SEQS):
        began = time.monotonic()
        status = scene.status_when(
            "api",
            "two replicas or more",
            lambda found: (found.get("effective") or {}).get("replicas", 1) >= 2,
            seconds=150,
        )
        replicas = status["effective"]["replicas"]
        scene.say(f"{status['diagnosis']['class']}: {status['diagnosis']['message']}")
        scene.check(
            True, f"the operator wants {replicas} replicas {time.monotonic() - began:.0f} s after the load began"
        )
        scene.until(f"{replicas} pods serve", lambda: len(scene.pods("api")) >= replicas, seconds=120)
        scene.check(True, f"{replicas} pods are Ready")


def uninstall(scene: Scene) -> None:
    """Without the operator everything goes on serving."""
    _chat(scene)
    scene.available("chat")
    with scene.load("chat", clients=manifests.REPLICAS):
        served = {name: pods for name in SERVICES if (pods := scene.own_pods(name))}
        before = scene.tally("chat")
        installation.helm_uninstall(scene.cluster)
        selector = f"{manifests.NAME}={installation.CHART_NAME}"
        scene.until(
            "no pod of the operator is left", lambda: not scene.cluster.list("pods", selector=selector), seconds=120
        )
        scene.check(True, "the operator is gone")
        time.sleep(TICKS_SECONDS)  # for what a garbage collector would take away
        for name, pods in served.items():
            # One more may have come: a replica that the operator asked for in its last moment.
            same = pods.items() <= scene.own_pods(name).items()
            scene.check(same, f"{name}: pods: {len(pods)}, all still there, none restarted")
        scene.answers("chat")
        after = scene.tally("chat")
        answered, failed = (after[key] - before[key] for key in ("succeeded", "failed"))
        scene.check(answered and not failed, f"{answered} requests were answered meanwhile, {failed} failed")


Act = Callable[[Scene], None]
ALL: Final[Mapping[str, Act]] = {
    "install": install,
    "serve": serve,
    "diagnose": diagnose,
    "canary": canary,
    "roll-back": roll_back,
    "in-place": in_place,
    "scale-out": scale_out,
    "uninstall": uninstall,
}
"""By the name of `--only`, in the order of the play."""


def _chat(scene: Scene) -> None:
    """Make chat where an act is played alone; afterwards it is as the act before has left it."""
    if condition(scene.status("chat"), "Ready") != "True":
        scene.serves(manifests.chat(scene.images.engine, mode="Recommend"))


def _judged_by_canary(scene: Scene, name: str, *, generation: int) -> Mapping[str, Any]:
    """Wait for the first change of a service, look at its canary, and return what the history says of it."""
    change = _change_when(
        scene, name, f"a canary of {name} is measured", lambda change: change.get("state") == "Analyzing"
    )
    for what, expected in (("canary", change["toValue"]), ("baseline", change["fromValue"])):
        trial = change[f"{what}Ref"]["name"]
        scene.check(scene.max_num_seqs(trial) == int(expected), f"{what}: {trial} serves with max-num-seqs {expected}")
    told = scene.explain(name)
    both = all(change[f"{what}Ref"]["name"] in told for what in ("canary", "baseline"))
    scene.check(both, f"`vllm-autotuner explain {name}` names both")
    scene.check(scene.generation(name) == generation, f"the {manifests.REPLICAS} existing pods are unchanged")
    return _ended(scene, name)


def _change_when(scene: Scene, name: str, what: str, holds: Callable[[Mapping[str, Any]], object]) -> Mapping[str, Any]:
    """Wait until the first change of a service is so far, and return it; fail when it ends before."""
    status = scene.status_when(
        name, what, lambda found: holds(found.get("activeChange") or {}) or found.get("history"), seconds=CHANGE_SECONDS
    )
    change: Mapping[str, Any] = status.get("activeChange") or {}
    if not holds(change):
        raise ActFailed(f"{what}: it ended before, as {status['history'][0]}")
    return change


def _ended(scene: Scene, name: str) -> Mapping[str, Any]:
    """Wait until the change of a service has ended, and return what the history says of it."""
    status = scene.status_when(
        name,
        f"the change of {name} ends",
        lambda found: found.get("history") and not found.get("activeChange"),
        seconds=CHANGE_SECONDS,
    )
    ended: Mapping[str, Any] = status["history"][0]
    return ended


def _trials_are_gone(scene: Scene, name: str) -> None:
    selector = f"vllm-autotuner.dev/service={name},vllm-autotuner.dev/change"
    scene.until(
        "canary and baseline are deleted",
        lambda: not scene.cluster.list("deployments", selector=selector),
        seconds=60,
    )
    scene.check(True, "canary and baseline are deleted")


def _told_of_requests(scene: Scene, name: str) -> None:
    tally = scene.tally(name)
    sent, answered, failed = (tally[key] for key in ("sent", "succeeded", "failed"))
    scene.say(f"of {sent} requests {answered} were answered, {failed} failed, {sent - answered - failed} are under way")


def _why(ended: Mapping[str, Any]) -> str:
    return f" ({ended['reason']})" if ended.get("reason") else ""
