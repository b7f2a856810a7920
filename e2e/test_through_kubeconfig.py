"""`python -m e2e.cluster` in a process of its own, against the API server of a bed, through a kubeconfig file alone.

The bed plays the nodes and the registry of a cluster: its process node learns here which local command stands for which
image. The acts know nothing of that. On a bed of its own: the run installs the CRD and takes it away again.
"""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from e2e.bed import REPOSITORY, Bed, current_mode
from e2e.cluster import acts
from e2e.stage import OPERATOR_IMAGE, SIMULATED_ENGINE

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.control_plane, pytest.mark.kubeconfig]

ENGINE_IMAGE: Final = {
    **SIMULATED_ENGINE,
    "match": "^vllm-autotuner-engine:",
    # The load names a command of its own, which the image has in its PATH.
    "env": {
        "PYTHONPATH": f"{REPOSITORY / 'operator'}",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "$(PATH)"]),
    },
}
CLUSTER_WIDE: Final = ("crd", "clusterroles", "clusterrolebindings", "namespaces")
SECONDS: Final = 1800.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bed]:
    """A bed that can run the three images, and knows nothing of the product."""
    if current_mode() != "namespace":
        pytest.skip("pods need addresses and mounts of their own, and Services (namespace mode)")
    prometheus = {"match": "/prometheus:", "command": [str(binaries["prometheus"])]}
    images = [OPERATOR_IMAGE, ENGINE_IMAGE, prometheus]
    async with Bed(state_dir=tmp_path_factory.mktemp("cluster"), images=images) as bed:
        yield bed


def play(bed: Bed, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `make e2e KUBECONFIG=FILE` runs, to its end."""
    done = subprocess.run(
        command(bed, *arguments), env=environment(bed), capture_output=True, text=True, check=False, timeout=SECONDS
    )
    print(done.stdout, done.stderr)
    return done


def command(bed: Bed, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "e2e.cluster", "--kubeconfig", str(bed.admin_kubeconfig), *arguments]


def environment(bed: Bed) -> dict[str, str]:
    """kubectl and helm are those of the bed."""
    commands = (bed.bin["kubectl"].parent, bed.bin["helm"].parent)
    return os.environ | {
        "PATH": os.pathsep.join([*map(str, commands), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "operator")]),
    }


def cluster_wide(bed: Bed) -> list[str]:
    """The names of everything that is in no namespace and could be left behind."""
    return sorted(bed.kubectl("get", ",".join(CLUSTER_WIDE), "-o", "name").split())


async def test_all_acts_pass_and_the_cluster_is_as_before(cluster: Bed) -> None:
    before = cluster_wide(cluster)
    done = play(cluster)
    assert re.findall(r"^PASS   (\S+)", done.stdout, re.MULTILINE) == list(acts.ALL)
    assert f"{len(acts.ALL)} of {len(acts.ALL)} acts passed" in done.stdout
    assert done.returncode == 0
    assert cluster_wide(cluster) == before


async def test_an_image_that_cannot_be_pulled_ends_the_run_with_what_to_do(cluster: Bed) -> None:
    before = cluster_wide(cluster)
    done = play(cluster, "--image", "registry.example/not-there:1")
    assert done.returncode == 1
    assert "FAIL   install" in done.stdout
    assert "cannot pull registry.example/not-there:1" in done.stdout
    assert "0 of 1 acts passed" in done.stdout
    assert cluster_wide(cluster) == before


async def test_what_is_kept_is_taken_over_by_the_next_run_and_then_removed(cluster: Bed) -> None:
    before = cluster_wide(cluster)
    kept = play(cluster, "--only", "serve", "--keep", "--namespace", "tried")
    assert kept.returncode == 0
    assert "kept: kubectl" in kept.stdout
    assert "chat" in cluster.kubectl("-n", "tried", "get", "vllm")
    again = play(cluster, "--only", "serve", "--namespace", "tried")
    assert again.returncode == 0
    assert "(of a former run)" in again.stdout
    assert cluster_wide(cluster) == before


async def test_a_run_that_is_terminated_leaves_nothing(cluster: Bed) -> None:
    before = cluster_wide(cluster)
    process = subprocess.Popen(
        command(cluster, "--only", "serve"), env=environment(cluster), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert any("a Prometheus serves" in line for line in process.stdout)
    process.terminate()
    assert process.wait(timeout=SECONDS) == 130
    process.stdout.close()
    assert cluster_wide(cluster) == before


async def test_a_namespace_of_another_is_not_touched(cluster: Bed) -> None:
    cluster.create_namespace("theirs")
    done = play(cluster, "--namespace", "theirs")
    assert done.returncode == 1
    assert "namespace theirs is not of a former run: name another with --namespace" in done.stderr
    assert "theirs" in cluster.kubectl("get", "namespace", "theirs")


async def test_beside_an_operator_of_every_namespace_nothing_is_played(cluster: Bed) -> None:
    cluster.create_namespace("production")
    values = ("--set", f"prometheus.url={cluster.prometheus_url}")
    chart = str(REPOSITORY / "charts" / "vllm-autotuner")
    helm = [str(cluster.bin["helm"]), "--kubeconfig", str(cluster.admin_kubeconfig), "-n", "production"]
    subprocess.run([*helm, "install", "tuner", chart, *values], check=True, capture_output=True)
    done = play(cluster)
    subprocess.run([*helm, "uninstall", "tuner"], check=True, capture_output=True)
    assert done.returncode == 1
    assert "the operator production/tuner-vllm-autotuner serves every namespace" in done.stderr
    assert "vllm-autotuner-e2e" not in cluster.kubectl("get", "namespaces")
