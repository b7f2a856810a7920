"""vLLM's own router, with each of its policies, and a pool of few connections: what does a new pod get beside old ones?

Three engines that cost nothing serve conversations; the third joins when the other two are warm. What it gets is read
from the engines' own counters, as the operator does, and `change/arm_traffic` has to say so where it is not its share.
Runs only where the router is installed (`python -m e2e.vllm_router`), but for the pool, which needs none.
Must not: ask for a share that a policy does not promise.
"""

import asyncio
import itertools
import random
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import aiohttp
import pytest
import pytest_asyncio

from e2e.ports import free_ports
from e2e.processes import PATIENCE, Processes, StateFile
from e2e.vllm_router import MISSING, POLICIES, command, locate
from vllm_autotuner.api.status import Measurement
from vllm_autotuner.change.arm_traffic import TOLERANCE, ArmTraffic, arm_traffic

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL: Final = "example/tiny"
CONVERSATIONS: Final = 24
SHARED: Final = "You are the assistant of a shop. Answer politely and briefly, in the language of the customer. " * 4
WARM_SECONDS: Final = 4.0
MEASURED_SECONDS: Final = 12.0
RATE: Final = 40.0
"""Requests per second: some 160 a pod while they are counted, so that chance alone moves no share by a quarter."""
EVEN: Final = frozenset({"round_robin", "random", "power_of_two"})
"""Policies that promise every worker its share."""

Send = Callable[[int, str], Coroutine[object, object, None]]
"""Sends a prompt of a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What an engine has served so far."""

    requests: float
    prompt_tokens: float


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Processes]:
    """For engines and routers."""
    folder = tmp_path_factory.mktemp("routers")
    started = Processes(logs=folder / "logs", state=StateFile(folder / "state.json"))
    yield started
    for name in started.names():
        started.stop(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(processes: Processes) -> list[str]:
    """Base URLs of three engines that answer at once."""
    urls = []
    for index, port in enumerate(free_ports(3)):
        serve = [sys.executable, "-m", "vllm_autotuner.simulation.server", "serve", MODEL, "--port", str(port)]
        processes.start(f"engine-{index}", [*serve, "--host", "127.0.0.1", "--max-num-seqs", "64"])
        urls.append(f"http://127.0.0.1:{port}")
        await processes.wait_ready(f"engine-{index}", healthy(urls[-1]), seconds=PATIENCE)
    return urls


def healthy(url: str) -> Callable[[], Awaitable[bool]]:
    """Whether `/health` answers."""

    async def probe() -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    return probe


def forwards(url: str) -> Callable[[], Awaitable[bool]]:
    """Whether a request is answered through the router, which needs a worker that it knows to be well."""

    async def probe() -> bool:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{url}/v1/chat/completions", json=body) as response,
            ):
                return response.status == 200
        except aiohttp.ClientError:
            return False

    return probe


async def counted(url: str) -> Counted:
    """Read an engine's counters."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        page = await response.text()

    def total(name: str) -> float:
        return sum(float(each) for each in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", page, flags=re.MULTILINE))

    return Counted(requests=total("vllm:request_success_total"), prompt_tokens=total("vllm:prompt_tokens_total"))


async def talk(send: Send, *, seconds: float, source: random.Random) -> None:
    """Let clients go on with their conversations, at `RATE` requests per second, and wait for every answer."""
    loop = asyncio.get_running_loop()
    ends, under_way = loop.time() + seconds, set[asyncio.Task[None]]()
    while loop.time() < ends:
        client = source.randrange(CONVERSATIONS)
        words = f"{SHARED} Customer {client}: " + f"my order number {client} has not come. " * (2 + client % 5)
        under_way.add(asyncio.create_task(send(client, words)))
        await asyncio.sleep(source.expovariate(RATE))
    await asyncio.gather(*under_way)


async def arms(
    urls: Sequence[str], send: Send, *, join: Callable[[], Awaitable[None]]
) -> tuple[list[float], ArmTraffic]:
    """Warm two engines, let the third join, and return the shares of the requests and what the canary got."""
    source = random.Random(17)
    await talk(send, seconds=WARM_SECONDS, source=source)
    await join()
    before = [await counted(url) for url in urls]
    await talk(send, seconds=MEASURED_SECONDS, source=source)
    after = [await counted(url) for url in urls]
    requests = [new.requests - old.requests for old, new in zip(before, after, strict=True)]
    prompts = [new.prompt_tokens - old.prompt_tokens for old, new in zip(before, after, strict=True)]
    assert sum(requests) > RATE * MEASURED_SECONDS / 2, "the load did not come"
    candidate = window(requests[2], prompts[2])
    reference = window((requests[0] + requests[1]) / 2, (prompts[0] + prompts[1]) / 2)
    found = arm_traffic([candidate], [reference], length=timedelta(seconds=MEASURED_SECONDS))
    return [each / sum(requests) for each in requests], found


def window(requests: float, prompt_tokens: float) -> Measurement:
    """One window of an arm, per pod."""
    return Measurement(
        at=datetime.now(UTC),
        requests_per_second=requests / MEASURED_SECONDS,
        prompt_tokens_per_second=prompt_tokens / MEASURED_SECONDS,
    )


def tell(name: str, shares: Sequence[float], found: ArmTraffic, record: Callable[[str, object], None]) -> None:
    """Record the shares, for the report of the run."""
    told = f"{' '.join(f'{share:.2f}' for share in shares)}; {found.told()}"
    record(f"shares of {name}", told)
    print(f"{name}: {told}")


@pytest.fixture(scope="module")
def router_python() -> Path:
    """The Python that has the router."""
    python = locate()
    if python is None:
        pytest.skip(MISSING)
    return python


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_router_gives_the_canary_its_share_or_the_operator_says_so(
    policy: str,
    router_python: Path,
    processes: Processes,
    engines: list[str],
    record_property: Callable[[str, object], None],
) -> None:
    port, metrics_port = free_ports(2)
    base, name = f"http://127.0.0.1:{port}", f"router-{policy}"
    processes.start(
        name, command(router_python, policy=policy, port=port, metrics_port=metrics_port, workers=engines[:2])
    )
    try:
        await processes.wait_ready(name, forwards(base), seconds=PATIENCE)
        async with aiohttp.ClientSession() as session:

            async def send(client: int, words: str) -> None:
                body = {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 8}
                headers = {"X-Session-ID": f"customer-{client}"}
                async with session.post(f"{base}/v1/chat/completions", json=body, headers=headers) as response:
                    assert response.status == 200, await response.text()

            async def join() -> None:
                async with session.post(f"{base}/add_worker", params={"url": engines[2]}) as response:
                    assert response.status == 200, await response.text()

            shares, found = await arms(engines, send, join=join)
    finally:
        processes.stop(name)
    tell(policy, shares, found, record_property)
    if policy in EVEN:
        assert (found.fewer, found.more) == (False, False), found.told()
    else:
        assert told_if_uneven(shares, found), found.told()


async def test_a_pool_of_few_connections_is_told(
    engines: list[str], record_property: Callable[[str, object], None]
) -> None:
    """A plain Service chooses a pod for each connection, not for each request: eight of them are not shared evenly."""
    source, turns = random.Random(3), itertools.count()
    pods = [source.choice(engines[:2]) for _ in range(8)]
    async with aiohttp.ClientSession() as session:

        async def send(client: int, words: str) -> None:
            del client
            body = {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 8}
            url = pods[next(turns) % len(pods)]
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()

        async def join() -> None:
            # One connection was closed since, and opened anew.
            pods[0] = engines[2]

        shares, found = await arms(engines, send, join=join)
    tell("a pool of eight connections", shares, found, record_property)
    assert found.fewer, found.told()


def told_if_uneven(shares: Sequence[float], found: ArmTraffic) -> bool:
    """Whether a canary that gets clearly less or more than its share is told: beyond twice what counts as equal."""
    ratio = shares[2] / ((shares[0] + shares[1]) / 2)
    if ratio < 1 - 2 * TOLERANCE:
        return found.fewer
    return found.more if ratio > 1 + 2 * TOLERANCE else True
