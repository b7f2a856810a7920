"""Leader election on a Lease, safe against crashed leaders, slow processes and wrong clocks.

Apart from `adapter`, because it has its own connection and pace, and because all writes rely on `is_leader`.
The client library's election is not used: it keeps renewing for a leader that has crashed, compares wall clocks of
different machines, and does not release on exit.

Why two processes never lead at once: a leader counts its time from *before* the request that renewed the lease and
stops by itself after `renew_deadline`; a contender counts from *after* it saw that renewal, on its own monotonic clock,
and waits the longer `lease_duration`. No wall clock of another machine is ever compared.
Must not: raise when the API fails. Leadership then runs out by itself, which is the point.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from vllm_autotuner.cluster.errors import NO_ANSWER, ClusterError, Conflict, NotFound, Unavailable
from vllm_autotuner.cluster.events import micro_time
from vllm_autotuner.cluster.kinds import LEASE

logger = logging.getLogger(__name__)

_NEVER: Final = -math.inf
_EPOCH_UNIT: Final = 4
"""Seconds. Leaders must not change more often than this on the whole, or an epoch after the Lease's deletion could fall
behind; and the number must fit into the API's 32 bits, which it does until 2242."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The three times of an election, in seconds; the defaults are those of Kubernetes' own controllers."""

    lease_duration: float = 15.0
    """A contender waits this long after the last renewal it saw. Longer: slower fail-over after a crash."""

    renew_deadline: float = 10.0
    """A leader that could not renew for this long stops. Must be shorter than the lease, by more than clocks drift."""

    retry_period: float = 2.0
    """Between two attempts, for leader and contenders."""

    request_timeout: float = 4.0
    """Until one attempt counts as failed. Several must fit into the renew deadline."""

    def __post_init__(self) -> None:
        """Refuse times with which two processes could lead at once, or one slow answer would cost the leadership."""
        if not 0 < self.retry_period + self.request_timeout < self.renew_deadline < self.lease_duration:
            raise ValueError("retry_period + request_timeout < renew_deadline < lease_duration must hold")


class Requests(Protocol):
    """The part of a connection that the election needs."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        timeout: float = ...,
    ) -> dict[str, Any]:
        """Send one request and return the object. Raises ClusterError."""
        ...


class Election:
    """One contender. `run` takes part until stopped; `is_leader` is right at the moment it is read."""

    def __init__(
        self,
        api: Requests,
        *,
        namespace: str,
        name: str,
        identity: str,
        settings: LeaseSettings,
        monotonic: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._leads_until = _NEVER
        self._epoch = 0
        self._seen: tuple[object, ...] | None = None
        self._seen_at = _NEVER
        self._asked_at = _NEVER
        """When the last attempt began."""
        self._written: Mapping[str, Any] | None = None
        """The Lease as this process wrote it last; None where another may have written it since."""
        self.leading = asyncio.Event()
        """Set while leading. May be cleared a moment late: for a decision ask `is_leader`."""

    @property
    def is_leader(self) -> bool:
        """Whether this process may write now. Runs out by the clock, even when the event loop was blocked."""
        return self._monotonic() < self._leads_until

    @property
    def epoch(self) -> int:
        """The fencing token of our latest leadership: grows with every change of leader; 0 before the first."""
        return self._epoch

    async def look(self) -> None:
        """Note who holds the lease: a process that is slow to start waits for a dead holder while it does."""
        with suppress(ClusterError):  # there is none yet, or the first attempt will tell what is wrong
            self._note((await self._request("GET")).get("spec") or {})

    async def run(self, stop: asyncio.Event) -> None:
        """Take part until `stop` is set; then, or when cancelled, give the lease back so that another need not wait."""
        try:
            while not stop.is_set():
                await self.step()
                try:
                    async with asyncio.timeout(self._pause()):
                        await stop.wait()
                except TimeoutError:
                    continue
        finally:
            await self.release()

    async def step(self) -> None:
        """Try once to acquire or renew."""
        self._asked_at = asked_at = self._monotonic()
        try:
            if not await self._renew_unread(asked_at):
                await self._acquire_or_renew(asked_at)
        except Conflict:
            # Another contender wrote between our read and our write; the next step sees what.
            logger.debug("lease was written by another process", extra={"lease": self._name})
        except ClusterError as error:
            logger.warning("failed to renew lease", extra={"lease": self._name, "error": str(error)})
        self._publish()

    async def release(self) -> None:
        """Give the lease back, if it is ours. Failing to is no error: it expires."""
        if self._leads_until == _NEVER:
            return
        # Before the request: from here on this process does not lead, however the request ends.
        self._leads_until, self._written = _NEVER, None
        self.leading.clear()
        try:
            lease = await self._request("GET")
            spec = lease["spec"]
            if spec.get("holderIdentity") == self._identity:
                lease["spec"] = spec | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
                await self._request("PUT", lease)
                logger.info("lease released", extra={"lease": self._name})
        except ClusterError as error:
            logger.info("failed to release lease, it will expire", extra={"lease": self._name, "error": str(error)})

    async def _renew_unread(self, asked_at: float) -> bool:
        """Renew by one request what this process wrote last; False where the Lease has to be read first.

        Where each answer takes two seconds, a read before each write would leave no time for one of them to fail.
        """
        lease, self._written = self._written, None
        if lease is None:
            return False
        renewed = {**lease["spec"], "renewTime": self._now(), "leaseDurationSeconds": self._whole_duration()}
        try:
            self._written = await self._request("PUT", {**lease, "spec": renewed})
        except (Conflict, NotFound):
            return False  # another process wrote it, or an answer to this one was lost
        except Unavailable as error:
            if error.reason != NO_ANSWER:
                self._written = lease  # it was refused as it came, as by 429
            raise
        self._lead(asked_at, epoch=self._epoch)
        return True

    async def _acquire_or_renew(self, asked_at: float) -> None:
        try:
            lease = await self._request("GET")
        except NotFound:
            await self._create(asked_at)
            return
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder != self._identity:
            # Another process holds it, or it was released: this process does not lead.
            self._leads_until = _NEVER
            if holder and not self._has_expired(spec):
                return
        transitions = int(spec.get("leaseTransitions") or 0)
        if holder == self._identity:
            renewed = spec | {"renewTime": self._now(), "leaseDurationSeconds": self._whole_duration()}
        else:
            # A namespace may move from one Lease to another: epochs of all of them grow with time.
            transitions = max(transitions + 1, self._epoch_now())
            renewed = self._spec(transitions)
        self._written = await self._request("PUT", lease | {"spec": renewed})
        self._lead(asked_at, epoch=transitions)

    async def _create(self, asked_at: float) -> None:
        # Since 1970, not 0: epochs must keep growing also after the Lease was deleted.
        epoch = self._epoch_now()
        body = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec(epoch),
        }
        self._leads_until = _NEVER
        self._written = await self._request("POST", body)
        self._lead(asked_at, epoch=epoch)

    def _epoch_now(self) -> int:
        return int(self._wall().timestamp()) // _EPOCH_UNIT

    def _lead(self, asked_at: float, *, epoch: int) -> None:
        if not self.leading.is_set():
            logger.info("became leader", extra={"lease": self._name, "identity": self._identity, "epoch": epoch})
        self._epoch = epoch
        self._leads_until = asked_at + self._settings.renew_deadline

    def _note(self, spec: Mapping[str, Any]) -> None:
        """Remember since when the lease looks like this, by our own clock."""
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._monotonic()

    def _has_expired(self, spec: Mapping[str, Any]) -> bool:
        self._note(spec)
        # The holder's own promise counts: it may run with other settings than we do.
        duration = float(spec.get("leaseDurationSeconds") or self._settings.lease_duration)
        return self._monotonic() >= self._seen_at + duration

    def _publish(self) -> None:
        if self.is_leader:
            self.leading.set()
        elif self.leading.is_set():
            self.leading.clear()
            logger.warning("lost leadership", extra={"lease": self._name, "epoch": self._epoch})

    def _pause(self) -> float:
        # Contenders that started together must not keep retrying together.
        spread = hashlib.sha256(self._identity.encode()).digest()[0] / 255
        period = self._settings.retry_period
        if self.is_leader:
            # From the beginning of the last attempt: what it took is not to be waited for once more.
            return max(0.0, min(self._asked_at + period, self._leads_until) - self._monotonic())
        return period * (1 + 0.2 * spread)

    def _spec(self, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._whole_duration(),
            "acquireTime": self._now(),
            "renewTime": self._now(),
            "leaseTransitions": transitions,
        }

    def _whole_duration(self) -> int:
        return math.ceil(self._settings.lease_duration)

    def _now(self) -> str:
        return micro_time(self._wall())

    async def _request(self, method: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        path = LEASE.path(self._namespace, None if method == "POST" else self._name)
        return await self._api.request(method, path, body=body, timeout=self._settings.request_timeout)


class Unelected:
    """Takes the place of an election where nothing is written: every process may look, and no Lease is needed."""

    is_leader: Final = True
    epoch: Final = 0

    async def look(self) -> None:
        """There is no holder."""

    async def run(self, stop: asyncio.Event) -> None:
        """Take part until `stop` is set."""
        await stop.wait()
