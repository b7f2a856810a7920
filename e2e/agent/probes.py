"""How a probe or a hook asks (HTTP, TCP, a command), how often, and how many equal answers count.

Apart from `health`, which knows the three kinds of probe and what follows.
Must not: know which of them it is, or kill anything.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import aiohttp

from e2e.agent.objects import Object
from e2e.agent.process import StartFailed

_LONGEST_BODY: Final = 10 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTiming:
    """When to ask (seconds) and how many equal answers in a row count."""

    initial_delay: float
    period: float
    timeout: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Object) -> "ProbeTiming":
        """Read a probe's spec; the API server has filled in the defaults."""
        return cls(
            initial_delay=probe.get("initialDelaySeconds", 0),
            period=probe.get("periodSeconds", 10),
            timeout=probe.get("timeoutSeconds", 1),
            success_threshold=probe.get("successThreshold", 1),
            failure_threshold=probe.get("failureThreshold", 3),
        )


@dataclass(slots=True, kw_only=True)
class Streak:
    """Counts equal answers in a row."""

    timing: ProbeTiming
    answer: bool | None = None
    length: int = 0

    def count(self, answer: bool) -> bool | None:
        """Return True or False when the threshold of that answer is reached or passed, else None."""
        self.length = self.length + 1 if answer is self.answer else 1
        self.answer = answer
        threshold = self.timing.success_threshold if answer else self.timing.failure_threshold
        return answer if self.length >= threshold else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One answer: `holds` is None while the threshold is not reached; `message` says what failed, empty on success."""

    holds: bool | None
    message: str


class ProbeFailed(Exception):
    """The answer is no; the text says what was seen."""


Check = Callable[[float], Awaitable[None]]
"""Asks once, within so many seconds. Raises ProbeFailed."""

Ask = Callable[[Object, float], Awaitable[None]]
"""Does what a probe or a hook says, within so many seconds. Raises ProbeFailed."""

RunInside = Callable[[Sequence[str], float], Awaitable[tuple[int, str]]]
"""Runs a command in the container. Returns exit code and output; raises StartFailed or TimeoutError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is asked: one container at its pod's address."""

    container: Object
    ip: str
    http: aiohttp.ClientSession
    run_inside: RunInside

    async def ask(self, action: Object, seconds: float) -> None:
        """See `Ask`."""
        if http := action.get("httpGet"):
            await http_get(self.http, http, ip=self.ip, port=port_of(http, self.container), seconds=seconds)
        elif tcp := action.get("tcpSocket"):
            await tcp_socket(tcp, ip=self.ip, port=port_of(tcp, self.container), seconds=seconds)
        elif pause := action.get("sleep"):
            await asyncio.sleep(pause["seconds"])
        elif command := action.get("exec"):
            await exec_command(self.run_inside, command["command"], seconds=seconds)
        else:
            raise ProbeFailed(f"{sorted(action)} is not supported by the process node")


async def verdicts(timing: ProbeTiming, check: Check) -> AsyncIterator[Verdict]:
    """Ask for ever, one verdict each period."""
    loop = asyncio.get_running_loop()
    streak = Streak(timing=timing)
    await asyncio.sleep(timing.initial_delay)
    while True:
        asked_at = loop.time()
        message = ""
        try:
            await check(timing.timeout)
        except ProbeFailed as failure:
            message = str(failure)
        yield Verdict(holds=streak.count(not message), message=message)
        await asyncio.sleep(max(0.0, asked_at + timing.period - loop.time()))


async def http_get(session: aiohttp.ClientSession, action: Object, *, ip: str, port: int, seconds: float) -> None:
    """Ask by HTTP; 200 to 399 is yes. Certificates are not verified, as in a kubelet."""
    scheme = action.get("scheme", "HTTP").lower()
    url = f"{scheme}://{action.get('host') or ip}:{port}/{action.get('path', '/').lstrip('/')}"
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or []}
    try:
        async with session.get(
            url,
            headers={"User-Agent": "kube-probe/process-node", **headers},
            timeout=aiohttp.ClientTimeout(total=seconds),
            allow_redirects=False,
            ssl=_unverified() if scheme == "https" else True,
        ) as response:
            body = await response.content.read(_LONGEST_BODY)
    except TimeoutError:
        raise ProbeFailed(f'Get "{url}": no answer within {seconds:g} s') from None
    except aiohttp.ClientConnectorError as error:
        raise ProbeFailed(f'Get "{url}": dial tcp {error.host}:{error.port}: {_words(error.os_error)}') from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ProbeFailed(f'Get "{url}": {error!r}') from None
    if not 200 <= response.status < 400:
        raise ProbeFailed(
            f"HTTP probe failed with statuscode: {response.status}: {body[:200].decode(errors='replace')}"
        )


async def tcp_socket(action: Object, *, ip: str, port: int, seconds: float) -> None:
    """Ask whether the port is open."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(action.get("host") or ip, port)
    except TimeoutError:
        raise ProbeFailed(f"dial tcp {ip}:{port}: no answer within {seconds:g} s") from None
    except OSError as error:
        raise ProbeFailed(f"dial tcp {ip}:{port}: {_words(error)}") from None
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def exec_command(run_inside: RunInside, argv: Sequence[str], *, seconds: float) -> None:
    """Ask by a command; exit code 0 is yes."""
    try:
        code, output = await run_inside(argv, seconds)
    except TimeoutError:
        raise ProbeFailed(f"command timed out after {seconds:g} s") from None
    except StartFailed as error:
        raise ProbeFailed(str(error)) from None
    if code != 0:
        raise ProbeFailed(output.strip() or f"command ended with exit code {code}")


def port_of(action: Object, container: Object) -> int:
    """Return the port number of an action, which may name one of the container's ports. Raises ProbeFailed."""
    port = action["port"]
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    for declared in container.get("ports") or []:
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise ProbeFailed(f"the container has no port named {port!r}")


def _words(error: OSError) -> str:
    # asyncio puts a sentence with the address where the system's words would be.
    return os.strerror(error.errno) if error.errno else str(error)


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
