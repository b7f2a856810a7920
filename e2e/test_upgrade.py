"""From an earlier version to this one and away again, with the real Helm, as the documentation says.

The earlier version is the code, the chart and the CRD of a commit, out of the history of this repository: a former
operator that wrote the statuses, the Leases and the Deployments that this one takes over. A chart with another number
would prove none of that. On a bed of its own: the CRD is one for all of a cluster.
"""

import asyncio
import io
import json
import re
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import httpx
import pytest
import pytest_asyncio
import yaml

from e2e.bed import REPOSITORY, Bed
from e2e.monitor import Monitor
from e2e.release import RELEASE
from e2e.shell import sh
from e2e.side_by_side import CROWD, QUICK, Play
from e2e.stage import MODEL, OPERATOR_IMAGE, SIMULATED_ENGINE, Empty, Stage, condition, until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.control_plane, pytest.mark.upgrade]

EARLIER: Final = "f126a7c57878c4822da80d844ca8cc01ab7c9d19"
"""The last commit before the CRD got its last field for now. Its chart lacks most of today's values."""
EARLIER_VERSION: Final = "0.0.9"
NAMESPACE: Final = "vllm-autotuner"
SERVED: Final = "prod"
PAGE: Final = REPOSITORY / "docs" / "daily-use.md"
CRD: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/vllmservices.vllm-autotuner.dev"
SECONDS: Final = 240.0


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the earlier version, with a number of its own."""
    git = ["git", "-C", str(REPOSITORY)]
    if subprocess.run([*git, "cat-file", "-e", f"{EARLIER}^{{commit}}"], capture_output=True, check=False).returncode:
        pytest.skip(f"this clone lacks commit {EARLIER[:7]}: git fetch --unshallow")
    archive = subprocess.run([*git, "archive", EARLIER, "operator", "charts"], capture_output=True, check=True).stdout
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    chart = folder / "charts" / "vllm-autotuner" / "Chart.yaml"
    numbers = {"version": EARLIER_VERSION, "appVersion": EARLIER_VERSION}
    chart.write_text(yaml.safe_dump(yaml.safe_load(chart.read_text()) | numbers))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def play(
    binaries: Mapping[str, Path], earlier: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Play]:
    """A bed with the earlier version, installed by Helm."""
    former = {**OPERATOR_IMAGE, "match": f"^vllm-autotuner:{re.escape(EARLIER_VERSION)}$"}
    former["env"] = {"PYTHONPATH": str(earlier / "operator")}
    images = [former, OPERATOR_IMAGE, SIMULATED_ENGINE]
    async with Bed(state_dir=tmp_path_factory.mktemp("upgrade"), images=images) as bed:
        bed.create_namespace(SERVED)
        async with Empty(bed, SERVED, interval="1s", window="6s") as stage:
            await install(stage, earlier / "charts" / "vllm-autotuner")
            async with Monitor(stage, may_miss=True) as monitor:
                yield Play(stage, monitor)


async def install(stage: Stage, chart: Path) -> None:
    """`helm install`, which installs the CRD, too."""
    values = {
        "prometheus": {"url": stage.bed.prometheus_url},
        "watchNamespaces": [SERVED],
        "interval": stage.interval,
        "window": stage.window,
        "concurrency": {"changes": "100%", "extraGPUs": "100%"},
    }
    given = stage.bed.state_dir / "values.json"
    given.write_text(json.dumps(values))
    await sh(stage.bed, f"helm install {RELEASE} {chart} -n {NAMESPACE} --create-namespace --values {given}")
    await until("the earlier operator runs", lambda: runs_alone(stage, EARLIER_VERSION), seconds=SECONDS)
    assert (await stage.get(CRD))["metadata"]["generation"] == 1


def documented(heading: str) -> str:
    """The commands under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return section.split("```")[1]


async def versions(stage: Stage) -> list[str]:
    """Of the operator's pods that are Ready and not going away."""
    pods = (await stage.get(f"/api/v1/namespaces/{NAMESPACE}/pods")).get("items", [])
    return [
        pod["spec"]["containers"][0]["image"].rpartition(":")[2]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and condition(pod["status"], "Ready") == "True"
    ]


async def runs_alone(stage: Stage, version: str) -> bool:
    return await versions(stage) == [version]


async def uids(stage: Stage, *names: str) -> dict[str, int]:
    """Of the pods, with their restarts."""
    return {
        pod["metadata"]["uid"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        for name in names
        for pod in await stage.ready_pods(name)
    }


async def answers(stage: Stage, name: str) -> None:
    """A request through each pod of the service is answered."""
    async with httpx.AsyncClient(trust_env=False) as client:
        for pod in await stage.ready_pods(name):
            url = f"http://{pod['status']['podIP']}:8000/v1/completions"
            answer = await client.post(url, json={"model": MODEL, "prompt": "hello", "max_tokens": 2}, timeout=30)
            assert answer.status_code == httpx.codes.OK, answer.text


async def test_an_upgrade_restarts_no_pod_and_a_change_under_way_ends_and_an_uninstall_leaves_all_serving(
    play: Play,
) -> None:
    stage, bed = play.stage, play.stage.bed
    await play.serves("idle", replicas=2)
    await play.serves("busy", clients=CROWD, tuning={"strategy": QUICK | {"analysis": "60s"}})
    change = await play.change_is("busy", "WarmingUp", "Analyzing")
    before, idle = await uids(stage, "idle"), await stage.deployment("idle")
    assert len(before) == 2

    # Why the page says otherwise: what the earlier chart did not have is then missing.
    await sh(bed, f"! helm upgrade {RELEASE} charts/vllm-autotuner -n {NAMESPACE} --reuse-values --dry-run=server")
    await sh(bed, documented("Upgrade"))
    current = yaml.safe_load((REPOSITORY / "charts" / "vllm-autotuner" / "Chart.yaml").read_text())["appVersion"]
    await until("this operator runs alone", lambda: runs_alone(stage, current), seconds=SECONDS)
    assert (await stage.get(CRD))["metadata"]["generation"] == 2
    assert (await play.status("busy"))["activeChange"]["id"] == change["id"], "it ended with the earlier version"
    entry = await play.finished("busy")
    assert (entry["id"], entry["outcome"], entry["toValue"]) == (change["id"], "Succeeded", "8"), entry
    await play.rolled_out("busy", seats=8)
    assert len(await play.events("busy", "ChangeStarted")) == 1
    assert await uids(stage, "idle") == before
    assert (await stage.deployment("idle"))["metadata"]["generation"] == idle["metadata"]["generation"]
    play.served_all_along("idle")
    play.served_all_along("busy")
    await play.went_well()

    serving = await uids(stage, "idle", "busy")
    statuses = {name: await play.status(name) for name in ("idle", "busy")}
    await sh(bed, documented("Uninstall"))
    await until("no operator is left", lambda: _is_gone(stage), seconds=SECONDS)
    assert await uids(stage, "idle", "busy") == serving
    for name in ("idle", "busy"):
        await answers(stage, name)
    assert {name: (await play.status(name))["effective"] for name in statuses} == {
        name: status["effective"] for name, status in statuses.items()
    }
    assert await left(stage) == {"Lease vllm-autotuner"}

    await sh(bed, "kubectl delete crd vllmservices.vllm-autotuner.dev --timeout=60s")
    await until("the CRD is gone", lambda: _lacks(stage, CRD), seconds=SECONDS)
    await asyncio.sleep(3)  # for what a garbage collector would take away
    assert await uids(stage, "idle", "busy") == serving
    for name in ("idle", "busy"):
        assert (await stage.get(f"/api/v1/namespaces/{SERVED}/services/{name}"))["metadata"]["name"] == name


async def _is_gone(stage: Stage) -> bool:
    return not (await stage.get(f"/api/v1/namespaces/{NAMESPACE}/pods")).get("items")


async def _lacks(stage: Stage, path: str) -> bool:
    return not await stage.get(path)


async def left(stage: Stage) -> set[str]:
    """What of the operator's own is still in the cluster."""
    own = f"/namespaces/{NAMESPACE}"
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    kinds = {
        "Lease": f"/apis/coordination.k8s.io/v1{own}/leases",
        "Deployment": f"/apis/apps/v1{own}/deployments",
        "ConfigMap": f"/api/v1{own}/configmaps",
        "Secret": f"/api/v1{own}/secrets",
        "ServiceAccount": f"/api/v1{own}/serviceaccounts",
        "Role": f"{rbac}{own}/roles",
        "RoleBinding": f"{rbac}/rolebindings",
        "ClusterRole": f"{rbac}/clusterroles",
        "ClusterRoleBinding": f"{rbac}/clusterrolebindings",
    }
    return {
        f"{kind} {each['metadata']['name']}"
        for kind, path in kinds.items()
        for each in (await stage.get(path)).get("items", [])
        if RELEASE in each["metadata"]["name"]
    }
