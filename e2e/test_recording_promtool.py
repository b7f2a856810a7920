"""What `record` writes, `promtool` reads, and a Prometheus then answers with."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.cli.test_record import VirtualEngine, plan, played


async def test_promtool_makes_blocks_of_a_recording(binaries: Mapping[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "recorded.om"
    engine = VirtualEngine(clients=6, seats=4)
    chosen = plan(out, "http://a:8000", "http://b:8000", duration=60, everything=True)
    assert await played(chosen, clock=engine.clock(), answer=engine)
    made = subprocess.run(
        [binaries["promtool"], "tsdb", "create-blocks-from", "openmetrics", out, tmp_path / "data"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (tmp_path / "data" / "wal").mkdir()
    shown = subprocess.run(
        [binaries["promtool"], "tsdb", "dump", '--match={__name__="vllm:num_requests_running"}', tmp_path / "data"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    written = [line for line in out.read_text().splitlines() if line.startswith("vllm:num_requests_running")]
    assert len(shown.stdout.splitlines()) == len(written) > 20
    assert {'instance="a:8000"' in line for line in written} == {True, False}
