"""The chart and services kept by the real Argo CD, with pruning and self-healing on, while the operator tunes them.

Rendered Lua and field managers prove little here: whether two controllers fight shows only where both run.
On a bed of its own: Argo CD watches all of a cluster.
"""

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml

from e2e import release
from e2e.argocd import Repository, Seen, application, running, until_synced
from e2e.bed import REPOSITORY, Bed, current_mode
from e2e.monitor import Monitor
from e2e.side_by_side import CROWD, Play, capped, degrading
from e2e.stage import OPERATOR_IMAGE, SIMULATED_ENGINE, Empty, until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.control_plane, pytest.mark.gitops]

OWN: Final = "vllm-autotuner"
MODELS: Final = "models"
SETTINGS: Final = REPOSITORY / "gitops" / "argocd" / "argocd-cm.yaml"
SECONDS: Final = 300.0


SERVICES: Final[Mapping[str, dict[str, Any]]] = {
    "good": {},
    "bad": {"simulated": degrading(), "deletionPolicy": "Delete"},
    "advised": {"tuning": {"mode": "Recommend"}},
}


@dataclass(frozen=True, slots=True)
class Scene:
    """The product and Argo CD, under way."""

    play: Play
    argo: Seen
    repository: Repository
    binaries: Mapping[str, Path]


def file_of(repository: Repository, name: str) -> Path:
    """Where Git has a service."""
    return repository.work / MODELS / f"{name}.yaml"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scene(argocd: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """CRD, chart and three services, all of them only ever written to Git."""
    if current_mode() != "namespace":
        pytest.skip("the chart's pod needs mounts of its own (namespace mode)")
    folder = tmp_path_factory.mktemp("gitops")
    async with (
        Bed(state_dir=folder / "bed", images=[OPERATOR_IMAGE, SIMULATED_ENGINE]) as bed,
        Empty(bed, MODELS, interval="1s", window="6s") as stage,
    ):
        for name in (OWN, MODELS):
            bed.create_namespace(name)
        repository = Repository.create(folder)
        shutil.copytree(REPOSITORY / "crds", repository.work / "crds")
        shutil.copytree(release.CHART, repository.work / "chart")
        (repository.work / MODELS).mkdir()
        for name, spec in SERVICES.items():
            file_of(repository, name).write_text(yaml.safe_dump(capped(MODELS, name, **spec)), encoding="utf-8")
        revision = repository.push("Serve three models, tuned")
        settings = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))["data"]
        async with running(stage, argocd, settings=settings, folder=folder / "argocd") as argo:
            values = {
                "prometheus": {"url": bed.prometheus_url},
                "interval": stage.interval,
                "window": stage.window,
                "concurrency": {"changes": "100%", "extraGPUs": "100%"},
            }
            helm = {"releaseName": release.RELEASE, "valuesObject": values}
            stage.apply(application("crds", repository, path="crds", namespace=OWN, options=["ServerSideApply=true"]))
            await until_synced(argo, ["crds"], revision)
            stage.apply(
                application("autotuner", repository, path="chart", namespace=OWN, helm=helm),
                application("models", repository, path=MODELS, namespace=MODELS),
            )
            await until_synced(argo, ["autotuner", "models"], revision)
            async with Monitor(stage) as monitor:
                play = Play(stage, monitor)
                play.names += SERVICES
                yield Scene(play, argo, repository, argocd)


async def all_healthy(argo: Seen) -> None:
    """Wait until Argo CD calls every service healthy."""

    async def healthy() -> bool:
        return argo.healths("models", "VLLMService") == dict.fromkeys(SERVICES, "Healthy")

    await until("Argo CD calls every service healthy", healthy, seconds=SECONDS)


async def test_argo_cd_says_of_each_service_what_kubectl_says(scene: Scene) -> None:
    await all_healthy(scene.argo)
    rows = json.loads(scene.play.stage.bed.kubectl("-n", MODELS, "get", "vllm", "-o", "json"))["items"]
    ready = {
        each["metadata"]["name"]: [c["status"] for c in each["status"]["conditions"] if c["type"] == "Ready"]
        for each in rows
    }
    assert ready == {name: ["True"] for name in SERVICES}
    assert scene.argo.health("autotuner") == "Healthy"


async def test_changes_are_kept_and_rolled_back_under_its_eyes(scene: Scene) -> None:
    play = scene.play
    for name in SERVICES:
        await play.until(name, "Ready", lambda status: status.get("readyReplicas"))
        await play.load(name, CROWD)
    good = await play.finished("good", seconds=SECONDS)
    assert (good["outcome"], good["toValue"]) == ("Succeeded", "8"), good
    bad = await play.finished("bad", seconds=SECONDS)
    assert bad["outcome"] == "RolledBack", bad
    assert (await play.flags("good")).max_num_seqs == 8
    await play.went_well()
    assert (scene.argo.drifted, scene.argo.healed) == ([], [])
    assert scene.argo.health("models") == "Healthy"


async def test_a_recommendation_that_is_committed_is_recognised(scene: Scene) -> None:
    play = scene.play
    advice = await play.until("advised", "advice", lambda status: (status.get("recommendation") or {}).get("id"))
    assert advice["recommendation"]["recommended"] == "8", advice["recommendation"]
    patch = yaml.safe_load(await play.exported("advised", kubeconfig=play.stage.bed.admin_kubeconfig))
    body = yaml.safe_load(file_of(scene.repository, "advised").read_text(encoding="utf-8"))
    body["spec"]["engine"] |= patch["spec"]["engine"]
    file_of(scene.repository, "advised").write_text(yaml.safe_dump(body), encoding="utf-8")
    revision = scene.repository.push("Take the recommendation")
    await until_synced(scene.argo, ["models"], revision)
    await play.rolled_out("advised", seats=8, seconds=SECONDS)

    def recognised(status: Mapping[str, Any]) -> bool:
        return any((each.get("came") or {}).get("comparedBy") == "Value" for each in status.get("trackRecord") or [])

    status = await play.until("advised", "the recommendation is seen carried out", recognised, seconds=SECONDS)
    assert not status.get("history"), status["history"]
    assert (scene.argo.drifted, scene.argo.healed) == ([], [])


@pytest.mark.parametrize("action", ["pause", "retry"])
async def test_its_own_interpreter_runs_the_scripts(scene: Scene, tmp_path: Path, action: str) -> None:
    """On an object as the cluster has it, by the command with which its administrators try their scripts."""
    await all_healthy(scene.argo)
    body = json.loads(scene.play.stage.bed.kubectl("-n", MODELS, "get", "vllm", "good", "-o", "json"))
    live = tmp_path / "live.yaml"
    live.write_text(yaml.safe_dump(body), encoding="utf-8")
    said = admin(scene.binaries, "run-action", str(live), action, folder=tmp_path)
    assert f"vllm-autotuner.dev/{action}" in said, said
    assert "Healthy" in admin(scene.binaries, "health", str(live), folder=tmp_path)


def admin(binaries: Mapping[str, Path], *arguments: str, folder: Path) -> str:
    """Run `argocd admin settings resource-overrides` with the settings of this repository."""
    settings = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    for file, kind, data in (("cm", "ConfigMap", settings["data"]), ("secret", "Secret", {})):
        metadata = {"name": f"argocd-{file}", "namespace": "argocd"}
        body = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}
        (folder / f"{file}.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
    result = subprocess.run(
        [
            *(str(binaries["argocd"]), "admin", "settings", "resource-overrides", *arguments),
            *("--argocd-cm-path", str(folder / "cm.yaml"), "--argocd-secret-path", str(folder / "secret.yaml")),
        ],
        env=os.environ | {"ARGOCD_BINARY_NAME": "argocd"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


async def test_what_git_no_longer_has_is_pruned(scene: Scene) -> None:
    """Pruned by Argo CD; its engines with it where `spec.deletionPolicy` says so, by default they serve on."""
    for name in ("bad", "advised"):
        file_of(scene.repository, name).unlink()
    revision = scene.repository.push("Retire a model, and take another into other hands")
    await until_synced(scene.argo, ["models"], revision)

    async def gone() -> bool:
        return not await scene.play.stage.deployment("bad")

    await until("the Deployment is gone", gone, seconds=SECONDS)
    assert set(scene.argo.healths("models", "VLLMService")) == {"good"}
    assert await scene.play.stage.ready_pods("advised")
    assert (scene.argo.drifted, scene.argo.healed) == ([], [])
