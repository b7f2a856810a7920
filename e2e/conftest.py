"""The bed of a test run: started by the first test that asks for it, one for all of them, a namespace for each.

Apart from the bed, because only pytest knows when a run begins and ends.
Must not: share anything else between tests; whatever a test changes lives in its own namespace. Scenes that take
minutes play side by side, each on a stage of its own.
"""

import itertools
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from tests.patience import patient_connections as patient_connections

from e2e import odd_engines
from e2e.bed import DEFAULT_IMAGES, Bed, current_mode
from e2e.binaries import BED_TOOLS, ensure_binaries
from e2e.errors import BedError, EngineError
from e2e.real_engine import RealEngine, locate
from e2e.side_by_side import Playing, is_played, selected
from e2e.stage import OPERATOR_IMAGE, SIMULATED_ENGINE

_NUMBERS = itertools.count(1)
_LOGS = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the real binaries, so that `-m "not control_plane"` leaves it out. Scenes come last, together:
    a test that is not async, between two of them, holds the loop and with it the load of every scene under way.
    """
    for item in items:
        if isinstance(item, pytest.Function) and {"bed", "binaries", "helm"} & set(item.fixturenames):
            item.add_marker(pytest.mark.control_plane)
    items.sort(key=is_played)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say where the bed's logs are when something failed."""
    logs = config.stash.get(_LOGS, None)
    if logs is not None and any(terminalreporter.stats.get(kind) for kind in ("failed", "error")):
        terminalreporter.write_line(f"logs of the bed: {logs}")


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Mapping[str, Path]:
    """The bed's programs, built when they are missing."""
    return built(BED_TOOLS, config=pytestconfig)


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config) -> Path:
    """The helm command, built when it is missing."""
    return built(["helm"], config=pytestconfig)["helm"]


@pytest.fixture(scope="session")
def prometheus_operator(pytestconfig: pytest.Config) -> Mapping[str, Path]:
    """The Prometheus Operator and its config reloader, built when they are missing."""
    return built(["prometheus-operator"], config=pytestconfig)


@pytest.fixture(scope="session")
def argocd(pytestconfig: pytest.Config) -> Mapping[str, Path]:
    """Argo CD and the cache that it needs, built when they are missing."""
    return built(["argocd"], config=pytestconfig)


@pytest.fixture(scope="session")
def thanos(pytestconfig: pytest.Config) -> Path:
    """Thanos, built when it is missing."""
    return built(["thanos"], config=pytestconfig)["thanos"]


@pytest.fixture(scope="session")
def kind(pytestconfig: pytest.Config) -> Path:
    """The kind command, built when it is missing."""
    return built(["kind"], config=pytestconfig)["kind"]


def built(tools: Sequence[str], *, config: pytest.Config) -> Mapping[str, Path]:
    """Build what is missing, and let the person see how long that takes."""
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            return ensure_binaries(tools)
        except BedError as error:
            inside = " (inside the bed's namespace there is no internet: run `python -m e2e.binaries` before)"
            pytest.fail(f"{error}{inside if current_mode() == 'namespace' else ''}", pytrace=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bed(
    binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> AsyncIterator[Bed]:
    """The one bed of this run: control plane, process node with 8 GPUs, Prometheus."""
    assert binaries
    bed = Bed(state_dir=tmp_path_factory.mktemp("bed"))
    pytestconfig.stash[_LOGS] = bed.state_dir / "logs"
    try:
        await bed.start()
    except BedError as error:
        bed.stop()
        pytest.fail(str(error), pytrace=False)
    yield bed
    bed.stop()


@pytest.fixture(scope="session")
def real_engine() -> RealEngine:
    """The real vLLM; what asks for it is skipped where none is installed."""
    try:
        found = locate()
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    if found is None:
        pytest.skip("no real vLLM is installed: run `python -m e2e.real_engine_command install`")
    return found


@pytest.fixture(scope="session")
def engines(bed: Bed) -> None:
    """Pods that name the image of vLLM, or of an odd engine, run simulated ones from now on; the operator's run it."""
    bed.set_images([*DEFAULT_IMAGES, SIMULATED_ENGINE, OPERATOR_IMAGE, *odd_engines.ROWS])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def playing(bed: Bed, engines: None, request: pytest.FixtureRequest) -> AsyncIterator[Playing]:
    """All selected scenes of all files, under way."""
    playing = Playing(bed, selected(request.session.items))
    yield playing
    await playing.end()


@pytest.fixture
def namespace(bed: Bed, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace, named after the test; its deletion is begun and not waited for."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    name = f"{words[:40].strip('-')}-{next(_NUMBERS)}"
    bed.create_namespace(name)
    yield name
    bed.delete_namespace(name)
