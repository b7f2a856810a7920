"""Simulated engines with faults that no SIM_ variable gives: they refuse to start, or tell nonsense.

Apart from the simulation, because these are faults of an image and not of a load, and only tests want them. Each one is
an image of its own: a row of the process node's table (`ROWS`), named in the spec like any other.
Must not: change what the engine prints or counts but for the fault itself.
"""

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


FAULTS: Final[Mapping[str, Callable[[], None]]] = {"refusing": refusing, "nonsense": nonsense}

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
