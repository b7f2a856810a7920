"""The Prometheus that scrapes honest and hostile pods, with the mistakes of an administrator that some attacks need.

Apart from the bed's own one, because hundreds of thousands of series would cost every other test on it.
Must not: scrape a pod of another namespace than the story's.
"""

from collections.abc import Sequence
from typing import Any, Final

from e2e.bed import Bed
from e2e.prometheus import Prometheus, pod_discovery

JOB: Final = "hostile.example/job"
"""The label of pods that a job of their own scrapes."""
META: Final = "__meta_kubernetes_pod_label_hostile_example_job"

JOBS: Final[dict[str, dict[str, Any]]] = {
    # A page of tens of megabytes takes seconds.
    "large": {"scrape_interval": "15s", "scrape_timeout": "14s"},
    "slow": {"scrape_interval": "70s", "scrape_timeout": "5s"},
    # The default is false; with true, a target reports for any namespace and pod.
    "forged": {"honor_labels": True},
    "native": {"convert_classic_histograms_to_nhcb": True},
}


def prometheus_of(bed: Bed, *, name: str, namespaces: Sequence[str]) -> Prometheus:
    """A server that scrapes the pods of these namespaces only; it is not started yet."""
    token = bed.control_plane.admin_token_file
    return Prometheus(
        binaries=bed.bin,
        processes=bed.processes,
        data=bed.state_dir / "data" / name,
        mode=bed.mode,
        config=_config(
            pod_discovery(api_url=bed.api_url, ca_file=bed.ca_file, token_file=token), namespaces=namespaces
        ),
        name=name,
    )


def _config(usual: dict[str, Any], *, namespaces: Sequence[str]) -> dict[str, object]:
    (pods,) = usual["scrape_configs"]
    (discovery,) = pods["kubernetes_sd_configs"]
    pods = {**pods, "kubernetes_sd_configs": [{**discovery, "namespaces": {"names": list(namespaces)}}]}
    _, *rules = pods["relabel_configs"]
    ordinary = {"source_labels": [META], "regex": ".+", "action": "drop"}
    special = [
        {
            **pods,
            **settings,
            "job_name": name,
            "relabel_configs": [{"source_labels": [META], "regex": name, "action": "keep"}, *rules],
        }
        for name, settings in JOBS.items()
    ]
    pods = {**pods, "relabel_configs": [ordinary, *pods["relabel_configs"]]}
    return {**usual, "scrape_configs": [pods, *special]}
