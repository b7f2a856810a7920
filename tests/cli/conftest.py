"""What holds for tests of commands: the servers they ask run in the test's own process."""

import gzip
from datetime import timedelta
from pathlib import Path

import pytest
from tests.diagnosis.recorded import RECORDINGS

from vllm_autotuner.observation.prometheus import PrometheusAddress


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a minute for an answer: on busy cores these servers may take longer than a Prometheus ever should."""
    defaults = PrometheusAddress.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", timedelta(minutes=1))


@pytest.fixture
def full_by_memory(tmp_path: Path) -> Path:
    """The recording of a full KV cache, as if no flag had set the number of its blocks."""
    found = tmp_path / "kv-saturation.om"
    with gzip.open(RECORDINGS / "kv-saturation.om.gz", "rt") as recorded:
        found.write_text(recorded.read().replace('num_gpu_blocks_override="40"', 'num_gpu_blocks_override="None"'))
    return found
