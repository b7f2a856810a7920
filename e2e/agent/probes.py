"""Probes: what is asked (HTTP, TCP, a command), how often, and when the answers change a container's state.

Apart from `container`, which decides what a change means.
Must not: know which of the three probes it is, or kill anything.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import aiohttp

from e2e.agent.objects import Object

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
        raise ProbeFailed(f'Get "{url}": dial tcp {error.host}:{error.port}: {error.os_error.strerror}') from None
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
        raise ProbeFailed(f"dial tcp {ip}:{port}: {error.strerror or error}") from None
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def port_of(action: Object, container: Object) -> int:
    """Return the port number of an action, which may name one of the container's ports. Raises ProbeFailed."""
    port = action["port"]
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    for declared in container.get("ports") or []:
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise ProbeFailed(f"the container has no port named {port!r}")


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
