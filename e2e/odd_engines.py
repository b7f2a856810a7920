"""Simulated engines with faults that no SIM_ variable gives: they refuse to start, or tell nonsense.

Apart from the simulation, because these are faults of an image and not of a load, and only tests want them. Each one is
an image of its own: a row of the process node's table (`ROWS`), named in the spec like any other.
Must not: change what the engine prints or counts but for the fault itself.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from e2e.bed import import_path
from vllm_autotuner.simulation import server
from vllm_autotuner.simulation.configuration import CoreRefused, EngineConfig, configure
from vllm_autotuner.simulation.metrics_page import render

SEATS: Final = 4
"""What the odd engines take for a harmless max-num-seqs."""
NO_MEMORY: Final = "No available memory for the cache blocks."
"""How vLLM begins to say that a configuration does not fit onto the GPU."""


def refusing() -> None:
    """More than SEATS sequences do not fit onto the GPU: vLLM ends before it serves."""

    def configure_or_refuse(*arguments: Any, **named: Any) -> EngineConfig:
        config = configure(*arguments, **named)
        if config.max_num_seqs > SEATS:
            raise CoreRefused(f"{NO_MEMORY} Try increasing `gpu_memory_utilization` when initializing the engine.")
        return config

    vars(server).update(configure=configure_or_refuse)


def nonsense() -> None:
    """Every gauge is NaN."""

    def render_nonsense(*arguments: Any, **named: Any) -> str:
        return re.sub(
            r"^(vllm:[a-z_]+(?<!_bucket)(?<!_sum)(?<!_count)(?<!_total)\{[^}]*\}) .*$",
            r"\1 NaN",
            render(*arguments, **named),
            flags=re.MULTILINE,
        )

    vars(server).update(render=render_nonsense)


def edges() -> None:
    """The first bucket of each histogram has an edge that is no number."""
    _edit(lambda page: re.sub(r'(_bucket\{[^}]*le=)"[^"+]*"', r'\1"abc"', page, count=1))


def edgeless() -> None:
    """The first bucket of the page has no edge."""
    _edit(lambda page: re.sub(r'(_bucket\{[^}]*),le="[^"]*"', r"\1", page, count=1))


def native() -> None:
    """The number of running requests is a histogram, which Prometheus can be told to store as a native one."""
    name = "vllm:num_requests_running"
    histogram = rf'{name}_bucket{{\1,le="1"}} 3\n{name}_bucket{{\1,le="+Inf"}} 3\n'
    histogram += rf"{name}_sum{{\1}} 3\n{name}_count{{\1}} 3"

    def edit(page: str) -> str:
        page = page.replace(f"# TYPE {name} gauge", f"# TYPE {name} histogram")
        return re.sub(rf"^{name}\{{([^}}]*)\}} .*$", histogram, page, flags=re.MULTILINE)

    _edit(edit)


def crowd() -> None:
    """The page shows as many engines more as CROWD_SERIES says, each with one running request."""
    count, label = int(os.environ["CROWD_SERIES"]), "x" * int(os.environ.get("CROWD_LABEL", "0"))
    name = "vllm:num_requests_running"
    more = "".join(f'{name}{{engine="{each}",model_name="{MODEL_NAME}{label}"}} 1\n' for each in range(1, count + 1))
    _edit(lambda page: page + more)


def forger() -> None:
    """Every series bears the namespace and the name of the pod that FORGED_NAMESPACE and FORGED_POD name."""
    namespace, pod = os.environ["FORGED_NAMESPACE"], os.environ["FORGED_POD"]
    _edit(lambda page: re.sub(r"^(vllm:\w+)\{", rf'\1{{namespace="{namespace}",pod="{pod}",', page, flags=re.MULTILINE))


def garrulous() -> None:
    """It ends at its start, after a line of 60 KB that is slow to search and one with credentials."""
    print("No valid attention backend found " * 1800)
    password, key, token = SECRETS
    print(f"ValueError: https://user:{password}@hub.example/model refused --api-key {key} HF_TOKEN={token}")
    sys.stdout.flush()
    sys.exit(1)


def _edit(change: Callable[[str], str]) -> None:
    vars(server).update(render=lambda *arguments, **named: change(render(*arguments, **named)))


MODEL_NAME: Final = "example/tiny"
SECRETS: Final = ("hunter2-of-the-hub", "sk-0123456789abcdef", "hf_0123456789abcdef")
"""What nobody but the reader of a pod's log may see."""

FAULTS: Final[Mapping[str, Callable[[], None]]] = {
    "refusing": refusing,
    "nonsense": nonsense,
    "edges": edges,
    "edgeless": edgeless,
    "native": native,
    "crowd": crowd,
    "forger": forger,
    "garrulous": garrulous,
}

ROWS: Final[Sequence[Mapping[str, object]]] = tuple(
    {
        "match": rf"^(docker\.io/)?example/{name}(:|@|$)",
        "command": [sys.executable, "-m", "e2e.odd_engines", name, "serve"],
        "env": {"PYTHONPATH": import_path()},
        "append": ["--host", "$(POD_IP)"],
    }
    for name in FAULTS
)


def image(name: str) -> str:
    """The image under which a spec asks for this fault. Raises KeyError when there is none."""
    if name not in FAULTS:
        raise KeyError(name)
    return f"example/{name}:v0.32.0"


if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    sys.exit(server.main(sys.argv[2:]))
