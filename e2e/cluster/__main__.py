"""`python -m e2e.cluster --kubeconfig FILE`: play the acts in a cluster. Exit code 0 only if every act passed."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster import acts, installation
from e2e.cluster.access import Cluster
from e2e.cluster.errors import ActFailed, ClusterError
from e2e.cluster.scene import Images, Scene

NAMESPACE: Final = "vllm-autotuner-e2e"
PROMETHEUS_IMAGE: Final = "quay.io/prometheus/prometheus:v3.5.0"
EXAMPLES: Final = f"""\
acts: {", ".join(acts.ALL)}

examples:
  make e2e KUBECONFIG=~/.kube/config \\
      ARGS="--image REGISTRY/vllm-autotuner:1 --engine-image REGISTRY/vllm-autotuner-engine:1"
  make e2e KUBECONFIG=~/.kube/config ARGS="--only canary --keep"    # then look around with kubectl
  make e2e KUBECONFIG=~/.kube/config ARGS="--only canary"           # once more, and clean up
  make kind                                                         # a cluster in Docker, images built and loaded

The images are built by `docker build -t NAME .` and `docker build --target engine -t NAME .`.
Everything happens in one namespace. Beside it the cluster gets the chart's ClusterRoles and, where there is none yet,
the CRD. At the end all of that is removed, unless --keep is given.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How an act went."""

    name: str
    passed: bool
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    cluster = Cluster(kubeconfig=options.kubeconfig.expanduser(), namespace=options.namespace)
    try:
        server = cluster.check()
        again = installation.prepare(cluster)
        print(f"cluster {server}, namespace {cluster.namespace}{' (of a former run)' if again else ''}", flush=True)
        images = Images(operator=options.image, engine=options.engine_image, prometheus=options.prometheus_image)
        try:
            results = play(cluster, images, chosen=options.only or list(acts.ALL))
            passed = sum(result.passed for result in results)
            seconds = sum(result.seconds for result in results)
            print(f"e2e: {passed} of {len(results)} acts passed, in {seconds:.0f} s", flush=True)
        finally:
            if options.keep:
                print(f"kept: kubectl --kubeconfig {cluster.kubeconfig} -n {cluster.namespace} get vllm,pods")
            else:
                installation.clean_up(cluster)
    except ClusterError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if passed == len(results) else 1


def play(cluster: Cluster, images: Images, *, chosen: Sequence[str]) -> Sequence[Result]:
    """Play the chosen acts in their order; without an installation there is nothing to play on."""
    results: list[Result] = []
    for name, act in acts.ALL.items():
        # The others need it: it changes nothing where it was played before.
        if name not in chosen and name != "install":
            continue
        began = time.monotonic()
        scene = Scene(cluster=cluster, images=images, say=lambda text: print(f"       {text}", flush=True))
        try:
            act(scene)
            passed = True
        except (ActFailed, ClusterError) as error:
            passed = False
            print(f"       {error}\n{state_of(cluster)}", flush=True)
        results.append(Result(name=name, passed=passed, seconds=time.monotonic() - began))
        print(f"{'PASS' if passed else 'FAIL'}   {name:<10} {results[-1].seconds:4.0f} s", flush=True)
        if name == "install" and not passed:
            break
    return results


def state_of(cluster: Cluster) -> str:
    """What a person would look at first, for the log of a run that is over."""
    told = []
    for command in (
        ("get", "vllmservices,deployments,pods", "-o", "wide"),
        ("logs", f"deployment/{installation.RELEASE}", "--tail=20"),
    ):
        try:
            told.append(cluster.kubectl(*command, "-n", cluster.namespace))
        except ClusterError as error:
            told.append(str(error))
    return "\n".join(told)


def _parser() -> argparse.ArgumentParser:
    version = installation.app_version()
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kubeconfig", type=Path, required=True, help="of a cluster admin; its current context is used"
    )
    parser.add_argument("--namespace", default=NAMESPACE, help="to be made for the acts (default: %(default)s)")
    parser.add_argument(
        "--image",
        default=f"vllm-autotuner:{version}",
        help="of the operator, as the cluster pulls it (default: %(default)s)",
    )
    parser.add_argument(
        "--engine-image", default=f"vllm-autotuner-engine:{version}", help="of engine and load (default: %(default)s)"
    )
    parser.add_argument("--prometheus-image", default=PROMETHEUS_IMAGE, help="(default: %(default)s)")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(acts.ALL),
        metavar="ACT",
        help="play this act, after install; repeatable",
    )
    parser.add_argument("--keep", action="store_true", help="leave everything in the cluster at the end")
    return parser


if __name__ == "__main__":
    # A run that is ended by its caller cleans up as one that is interrupted at the keyboard.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
