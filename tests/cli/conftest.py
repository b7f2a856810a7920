"""What holds for tests of commands: the servers they ask run in the test's own process."""

from datetime import timedelta

import pytest

from vllm_autotuner.observation.prometheus import PrometheusAddress


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a minute for an answer: on busy cores these servers may take longer than a Prometheus ever should."""
    defaults = PrometheusAddress.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", timedelta(minutes=1))
