"""How long tests wait for what takes a moment where a server, a thread or another process has a part in it.

Apart from the tests, so that it is one number. Must not: be used for a limit that is what a test is about.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from vllm_autotuner.cluster.client import Connection

PATIENCE: Final = 60.0
"""Seconds; on an idle machine it is a hundredth of that."""


@pytest.fixture(autouse=True, scope="session")
def patient_connections() -> Iterator[None]:
    """Let the API server, a real one or an emulated one, answer a busy machine late where no limit is named."""
    with pytest.MonkeyPatch.context() as patch:
        for ask in (Connection.request, Connection.tail):
            assert ask.__kwdefaults__ is not None
            patch.setitem(ask.__kwdefaults__, "timeout", PATIENCE)
        yield
