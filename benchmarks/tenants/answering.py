"""Starts the stand-in for Prometheus beside a bed, with the answers that a real one gave.

Separate from the commands, because two of them need it. Must not: ask or change an answer.
"""

import os
import sys
from typing import Final

from e2e.bed import Bed, import_path
from e2e.ports import free_ports
from e2e.stage import until

__all__ = ["STAND_IN", "answering"]

STAND_IN: Final = "stand-in"
"""The name of its process in the bed."""


async def answering(bed: Bed, shapes: str) -> str:
    """Return its URL when it answers. `shapes` is the JSON of `recorded`. Raises BedError after half a minute."""
    file = bed.state_dir / "shapes.json"
    file.write_text(shapes, encoding="utf-8")
    (port,) = free_ports(1)
    bed.processes.start(
        STAND_IN,
        [sys.executable, "-m", "benchmarks.tenants.stand_in", str(file), str(port)],
        environment=os.environ | {"PYTHONPATH": import_path()},
    )
    await until("the stand-in answers", lambda: bed.processes.listens(STAND_IN, port=port), seconds=30)
    return f"http://127.0.0.1:{port}"
