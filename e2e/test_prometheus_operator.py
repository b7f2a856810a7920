"""The chart's monitors, alerts and dashboards under the real Prometheus Operator and the Prometheus that it runs.

Rendered objects prove little here: whether an engine is scraped, with which labels, and whether a panel has data is
decided by what another operator makes of them. On a bed of its own: its CRDs are one set for all of a cluster.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml
from tests.browser import AXE, CHROMIUM, NO_CHROMIUM, WIDTHS, axe_core, look_at, picture

from docs import pictures
from docs.operator_metrics import ALERTS
from e2e import release
from e2e.bed import REPOSITORY, Bed, current_mode
from e2e.dashboards import answered, drawn, filled, variables
from e2e.monitor import Monitor
from e2e.prometheus_operator import (
    MANIFEST,
    SELECTED,
    Server,
    complaints,
    generated_jobs,
    generated_rules,
    images,
    install,
    make_room,
    prometheus,
    until_available,
)
from e2e.release import RELEASE
from e2e.side_by_side import CROWD, Play, capped
from e2e.stage import OPERATOR_IMAGE, SIMULATED_ENGINE, Empty, Stage, condition, until
from vllm_autotuner.workload.labels import OPERATOR

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.control_plane, pytest.mark.prometheus_operator]

OWN: Final = "vllm-autotuner"
"""The namespace of the release, as in `docs/multi-tenancy.md`."""
SERVED, OTHER = "prod", "lab"
PAGE: Final = REPOSITORY / "docs" / "multi-tenancy.md"
MONITORED: Final[dict[str, Any]] = {
    "podMonitor": {"enabled": True, "interval": "1s", "labels": SELECTED},
    "enginePodMonitor": {"enabled": True, "interval": "1s", "labels": SELECTED},
    "prometheusRule": {"enabled": True, "labels": SELECTED},
    "dashboards": {"enabled": True},
}
"""Values of the chart: all that there is for the Prometheus Operator, and for Grafana."""
OPERATORS_JOB: Final = f"podMonitor/{OWN}/{RELEASE}/0"
ENGINES_JOB: Final = f"podMonitor/{OWN}/{RELEASE}-engines/0"
ALERTED: Final = [rule["alert"] for rule in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]]
OF_THE_MACHINE: Final = {"AutotunerFallsBehind"}
"""Alerts that ticks of a second may set off on a busy machine."""
SECONDS: Final = 240.0
SCALING: Final = {"minReplicas": 1, "maxReplicas": 2}


@dataclass(frozen=True, slots=True)
class Scene:
    """The product and its neighbours, under way."""

    play: Play
    server: Server
    binaries: Mapping[str, Path]
    began: float
    """Unix time of the chart's installation."""

    @property
    def stage(self) -> Stage:
        """That of the first served namespace."""
        return self.play.stage


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scene(
    binaries: Mapping[str, Path], prometheus_operator: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """The Prometheus Operator, the chart with all its switches, services in two namespaces, and last a Prometheus."""
    if current_mode() != "namespace":
        pytest.skip("the generated configuration names paths: its pods need mounts of their own (namespace mode)")
    rows = [OPERATOR_IMAGE, SIMULATED_ENGINE, *images({**binaries, **prometheus_operator})]
    async with (
        Bed(state_dir=tmp_path_factory.mktemp("operated"), images=rows) as bed,
        Empty(bed, SERVED, interval="1s", window="6s") as stage,
    ):
        for name in (SERVED, OTHER):
            bed.create_namespace(name)
        await install(stage, prometheus_operator["prometheus-operator"].with_name(MANIFEST))
        url, began = await make_room(stage), time.time()
        values = {
            "prometheus": {"url": url},
            "interval": stage.interval,
            "window": stage.window,
            "concurrency": {"changes": "100%", "extraGPUs": "100%"},
        }
        await asyncio.to_thread(
            release.helm, bed, "install", "--create-namespace", namespace=OWN, values=MONITORED | values
        )
        async with Monitor(stage) as monitor:
            play = Play(stage, monitor)
            stage.apply(capped(OTHER, "chat", scaling=SCALING))
            await play.serves("chat", scaling=SCALING)
            await play.serves("busy", clients=CROWD)
            await play.serves("advised", clients=CROWD, tuning={"mode": "Recommend"})
            # Only now: until then the product asks a server that is not there, which one panel shows.
            stage.apply(prometheus(prometheus_operator, scrapeInterval="1s", **enforcement()))
            await until_available(stage)
            yield Scene(play, Server(url), prometheus_operator, began)


def enforcement() -> dict[str, Any]:
    """What the page tells to set on a Prometheus that tenants share."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [found] = [block for block in blocks if "enforcedNamespaceLabel" in block]
    spec: dict[str, Any] = yaml.safe_load(found)
    return spec


@pytest.mark.parametrize("served", [[], [SERVED, OTHER]], ids=["of every namespace", "of some namespaces"])
async def test_no_field_of_the_chart_is_unknown_to_the_real_crds(scene: Scene, served: list[str]) -> None:
    # In another namespace, where nothing of it exists.
    objects = release.render(scene.stage.bed, namespace=OTHER, values=MONITORED | {"watchNamespaces": served})
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    scene.stage.bed.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", input=manifest)
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= {each["kind"] for each in objects}


async def test_monitors_and_rules_are_taken_into_the_generated_configuration(scene: Scene) -> None:
    assert set(await generated_jobs(scene.stage)) == {OPERATORS_JOB, ENGINES_JOB}
    [group] = await generated_rules(scene.stage)
    assert [rule["alert"] for rule in group["rules"]] == ALERTED
    assert await complaints(scene.stage) == []


async def test_engines_and_the_operator_are_scraped_under_their_own_names(scene: Scene) -> None:
    async def all_up() -> bool:
        targets = await scene.server.targets()
        return {each["scrapePool"] for each in targets} == {OPERATORS_JOB, ENGINES_JOB} and all(
            each["health"] == "up" for each in targets
        )

    async def labelled(metric: str, selector: str) -> bool:
        found = await scene.stage.get(f"/api/v1/pods?labelSelector={selector}")
        pods = [each["metadata"] for each in found["items"] if "deletionTimestamp" not in each["metadata"]]
        series = await scene.server.query(metric)
        return bool(pods) and (
            sorted((each["namespace"], each["pod"]) for each in series)
            == sorted((each["namespace"], each["name"]) for each in pods)
        )

    await until("every target is up", all_up, seconds=SECONDS)
    engines = f"app.kubernetes.io/managed-by%3D{OPERATOR}"
    await until("engines", lambda: labelled("vllm:num_requests_running", engines), seconds=SECONDS)
    own = f"app.kubernetes.io/name%3D{OPERATOR},app.kubernetes.io/managed-by%3DHelm"
    await until("the operator", lambda: labelled("vllm_autotuner_leader", own), seconds=SECONDS)


async def test_every_rule_is_evaluated_and_sees_that_all_is_well(scene: Scene) -> None:
    async def well() -> bool:
        rules = await scene.server.rules()
        assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
        # `absent` is among them: it is inactive only where the enforced label fits what the operator's series carry.
        loud = {rule["name"] for rule in rules if rule["health"] != "ok" or rule["state"] != "inactive"}
        return [rule["name"] for rule in rules] == ALERTED and loud <= OF_THE_MACHINE

    await until("every rule is evaluated and inactive", well, seconds=SECONDS)


async def test_the_product_diagnoses_and_tunes_by_that_prometheus(scene: Scene) -> None:
    play = scene.play
    entry = await play.finished("busy", seconds=SECONDS)
    assert (entry["outcome"], entry["toValue"]) == ("Succeeded", "8"), entry
    advised = await play.until("advised", "advice", lambda found: (found.get("recommendation") or {}).get("heldBy"))
    assert advised["diagnosis"]["class"] == "ConcurrencyCapped", advised["diagnosis"]
    await play.until("chat", "Idle", lambda status: (status.get("diagnosis") or {}).get("class") == "Idle")
    elsewhere = scene.stage.beside(OTHER)
    await until("lab/chat is seen", lambda: _class(elsewhere, "chat"), seconds=SECONDS)
    await play.went_well()


async def _class(stage: Stage, name: str) -> bool:
    status = await stage.status(name)
    return (status.get("diagnosis") or {}).get("class") == "Idle" and condition(status, "MetricsAvailable") == "True"


async def boards_of(scene: Scene) -> list[dict[str, Any]]:
    """The dashboards as Grafana's sidecar finds them, once a change is over."""
    await scene.play.finished("busy", seconds=SECONDS)
    maps = await scene.stage.get("/api/v1/configmaps?labelSelector=grafana_dashboard%3D1")
    return [json.loads(text) for each in maps["items"] for text in each["data"].values()]


async def test_every_panel_of_every_dashboard_has_data(scene: Scene) -> None:
    boards = await boards_of(scene)
    assert len(boards) == 2
    empty = []
    for board in boards:
        chosen = await variables(scene.server.get, board)
        for each in board["annotations"]["list"]:
            if not await shown(scene, filled(each["expr"], chosen), legend=each["textFormat"]):
                empty.append(f"{board['title']}: annotation {each['name']}")
        for panel in board["panels"]:
            for target in panel["targets"]:
                found = await shown(scene, filled(target["expr"], chosen), legend=target["legendFormat"])
                if not found:
                    empty.append(f"{board['title']}: {panel['title']}")
                if panel["title"] == "Wanted replicas":
                    assert found == {f"{SERVED}/chat", f"{OTHER}/chat"}
    assert empty == []


async def shown(scene: Scene, expression: str, *, legend: str) -> set[str]:
    """The names in a panel's legend of all series with a value since the beginning of the scene."""
    lines = await answered(scene.server.get, expression, legend=legend, since=scene.began, until=time.time())
    return {line.name for line in lines}


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
async def test_the_dashboards_can_be_drawn_for_a_desk_and_a_phone(scene: Scene, tmp_path: Path) -> None:
    """And their pictures are kept for the site, as those of `make screenshots` are."""
    pictures.FOLDER.mkdir(exist_ok=True)
    for board in await boards_of(scene):
        page = await drawn(board, scene.server.get, since=scene.began, until=time.time())
        name = board["uid"].replace("vllm-autotuner", "dashboard")
        file = tmp_path / f"{name}.html"
        file.write_text(page, encoding="utf-8")
        assert name in pictures.NAMES
        for width in WIDTHS:
            looked = await asyncio.to_thread(look_at, page, width=width, axe=axe_core() if AXE.is_file() else None)
            assert (looked.width <= width, looked.grave) == (True, ()), name
            png = pictures.FOLDER / f"{name}-{width}.png"
            await asyncio.to_thread(picture, file.as_uri(), width=width, height=looked.height, file=png)


async def test_the_doctor_finds_nothing_to_repair(scene: Scene) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "vllm_autotuner", "doctor", "--prometheus", scene.server.url),
        cwd=REPOSITORY / "operator",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_without_its_exemption_the_enforced_label_makes_every_service_blind(scene: Scene) -> None:
    """Why the page says so; the last test, for nothing is seen from here on."""
    assert _namespace_in((await generated_jobs(scene.stage))[ENGINES_JOB]) == "of the pod"
    scene.stage.apply(prometheus(scene.binaries, scrapeInterval="1s", enforcedNamespaceLabel="namespace"))

    async def counted_for_the_release() -> bool:
        return _namespace_in((await generated_jobs(scene.stage))[ENGINES_JOB]) == OWN

    await until("the label of the release's namespace", counted_for_the_release, seconds=SECONDS)
    for name in ("chat", "busy", "advised"):
        await scene.play.until(
            name, "blindness", lambda status: status["diagnosis"]["class"] == "MetricsBlind", seconds=SECONDS
        )


def _namespace_in(job: Mapping[str, Any]) -> str:
    """Which namespace a job's series carry in the end: the last rule that sets it decides."""
    rules = [*job["relabel_configs"], *job.get("metric_relabel_configs", [])]
    last = [rule for rule in rules if rule.get("target_label") == "namespace"][-1]
    return "of the pod" if last.get("source_labels") == ["__meta_kubernetes_namespace"] else str(last["replacement"])
