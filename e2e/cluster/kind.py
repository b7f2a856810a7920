"""`python -m e2e.cluster.kind`: a kind cluster with images built here, the acts in it, and away with it.

Apart from the acts, for which it is a cluster like any other.
Must not: touch a kind cluster of another name, or the user's own kubeconfig.
"""

import argparse
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.cluster import __main__ as command
from e2e.cluster import installation
from e2e.cluster.errors import ClusterError

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CONFIG: Final = Path(__file__).with_name("kind.yaml")
CLUSTER: Final = "vllm-autotuner-e2e"
KUBECONFIG: Final = REPOSITORY / ".state" / "kind.kubeconfig"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is that of the acts."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster.kind",
        description=__doc__.split("\n")[0],
        epilog="All other options are those of `python -m e2e.cluster`, such as --only ACT.",
    )
    parser.add_argument("--kind", default="kind", help="the kind command (default: that in the PATH)")
    parser.add_argument(
        "--keep", action="store_true", help="leave the cluster, and everything in it; run again to go on"
    )
    options, more = parser.parse_known_args(arguments)
    try:
        images = built()
        try:
            create(options.kind)
            _run(options.kind, "load", "docker-image", "--name", CLUSTER, *images)
            keep = ("--keep",) if options.keep else ()
            return command.main(["--kubeconfig", str(KUBECONFIG), *keep, *more])
        finally:
            if not options.keep:
                _run(options.kind, "delete", "cluster", "--name", CLUSTER, "--kubeconfig", str(KUBECONFIG))
    except ClusterError as error:
        print(f"kind: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def built() -> Sequence[str]:
    """Build both images of this checkout, under the names that the acts take by default."""
    if shutil.which("docker") is None:
        raise ClusterError("docker is not in the PATH: install it (https://docs.docker.com/engine/install/)")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        raise ClusterError("no Docker daemon answers: start Docker (`docker info` has to work)")
    version = installation.app_version()
    images = {"operator": f"vllm-autotuner:{version}", "engine": f"vllm-autotuner-engine:{version}"}
    for target, image in images.items():
        _run("docker", "build", "--target", target, "--tag", image, str(REPOSITORY))
    return list(images.values())


def create(kind: str) -> None:
    """Create the cluster, or go on with the one that a former run kept."""
    KUBECONFIG.parent.mkdir(exist_ok=True)
    kubeconfig = ("--kubeconfig", str(KUBECONFIG))
    listed = subprocess.run([kind, "get", "clusters"], capture_output=True, text=True, check=False)
    if CLUSTER in listed.stdout.split():
        _run(kind, "export", "kubeconfig", "--name", CLUSTER, *kubeconfig)
    else:
        _run(kind, "create", "cluster", "--name", CLUSTER, "--config", str(CONFIG), "--wait", "120s", *kubeconfig)


def _run(*words: str) -> None:
    """Run a command whose output the person sees. Raises ClusterError when it fails."""
    done = subprocess.run(words, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(words)} ended with exit code {done.returncode}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # then the cluster is deleted, too
    sys.exit(main())
