"""One pod of the fleet: an engine from its command line on, through start-up, serving, draining, to its end.

Must not: decide when it starts or goes (`fleet` does), or know who asked for it.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from benchmarks.closedloop.ledger import Ledger
from vllm_autotuner.control.views import PodView, Termination
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.simulation.arguments import parse_arguments
from vllm_autotuner.simulation.configuration import Profile, StartupRefused, configure
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request, RequestRefused, Sequence, State
from vllm_autotuner.simulation.startup import announcement, capacity, refusal
from vllm_autotuner.workload.hashing import recorded_hash

__all__ = ["Phase", "Pod", "Template"]

FIRST_BACKOFF = 10.0
LONGEST_BACKOFF = 300.0
"""Seconds before the kubelet starts a crashed container again: doubled each time, up to five minutes."""
CRASH_AFTER = 0.25
"""Part of a normal start after which an impossible configuration is refused. Our choice: the weights are not loaded."""


class Phase(StrEnum):
    """Where a pod is."""

    STARTING = "Starting"
    READY = "Ready"
    DRAINING = "Draining"
    GONE = "Gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a rendered Deployment says about its pods."""

    config_hash: str
    image: str
    args: tuple[str, ...]
    grace: float
    """Seconds between the decision to stop a pod and its end."""
    gpus: int

    @classmethod
    def of(cls, body: dict[str, Any]) -> "Template":
        """Read a rendered Deployment."""
        template = body["spec"]["template"]
        container = template["spec"]["containers"][0]
        recorded = recorded_hash(body)
        assert recorded is not None, "a rendered Deployment carries its hash"
        devices = container["resources"]["limits"].values()
        return cls(
            config_hash=recorded[0],
            image=container["image"],
            args=tuple(container["args"]),
            grace=float(template["spec"]["terminationGracePeriodSeconds"]),
            gpus=sum(int(count) for count in devices),
        )


@dataclass(slots=True, eq=False)
class Pod:
    """A pod; times in seconds since the start of the run."""

    name: str
    template: Template
    created: float
    seed: int
    phase: Phase = Phase.STARTING
    ready_since: float = math.inf
    gone_at: float = math.inf
    deadline: float = math.inf
    """When a draining pod is killed."""
    wedged: bool = False
    restarts: int = 0
    crashed_at: float | None = None
    log: str = ""
    previous_log: str = ""
    engine: SimulatedEngine | None = None
    in_flight: dict[int, tuple[int, Sequence | None]] = field(default_factory=dict)
    """Ticket of the pod -> request of the run; no sequence where a wedged engine never took it."""
    peak: int = 0
    """Most requests that it ever had at once."""
    _tickets: int = 0
    _unanswered: deque[tuple[float, int]] = field(default_factory=deque)
    """(when its client gives up, ticket), in order of arrival."""
    _by_sequence: dict[int, int] = field(default_factory=dict)

    def start(self, profile: Profile, *, at: float) -> bool:
        """Start the container; False when the engine refuses its configuration, with the reason in the log."""
        clock = f"{at:.0f}"
        given = parse_arguments(["serve", *self.template.args])
        lines = [announcement(given, pid=1, at=clock)]
        try:
            config = configure(parse_flags(self.template.args), profile=profile)
        except StartupRefused as error:
            self.log = "\n".join([*lines, refusal(error, pid=1, at=clock)])
            return False
        self.log = "\n".join([*lines, capacity(config, pid=1, at=clock)])
        self.engine = SimulatedEngine(config, started=at, seed=self.seed)
        return True

    def crash(self, *, at: float) -> float:
        """The container ended; return when it is started again."""
        self.restarts += 1
        self.crashed_at, self.previous_log = at, self.log
        return at + min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** (self.restarts - 1))

    def take(self, index: int, request: Request, *, patience: float, ledger: Ledger) -> None:
        """Accept request number `index` of the run, at its arrival."""
        self._tickets += 1
        sequence = None
        if not self.wedged:
            self.advance(request.arrival, ledger=ledger)
            assert self.engine is not None
            try:
                sequence = self.engine.submit(request)
            except RequestRefused:
                ledger.failed(index)
                return
            self._by_sequence[sequence.identity] = self._tickets
        self.in_flight[self._tickets] = (index, sequence)
        self.peak = max(self.peak, len(self.in_flight))
        self._unanswered.append((request.arrival + patience, self._tickets))

    def advance(self, at: float, *, ledger: Ledger) -> None:
        """Let the engine work until `at`, and clients that had no first token in time go."""
        if self.engine is None:
            return
        if not self.wedged:
            for outcome in self.engine.advance(at):
                ticket = self._by_sequence.pop(outcome.sequence.identity)
                index, _ = self.in_flight.pop(ticket)
                ledger.served(index, outcome)
        while self._unanswered and self._unanswered[0][0] <= at:
            _, ticket = self._unanswered.popleft()
            index, sequence = self.in_flight.get(ticket, (-1, None))
            if index < 0 or (sequence is not None and sequence.first_token is not None):
                continue
            self._give_up(ticket, ledger=ledger)

    def end(self, *, at: float, ledger: Ledger) -> None:
        """The pod is gone, and with it every request that it still had."""
        self.advance(at, ledger=ledger)
        for ticket in tuple(self.in_flight):
            self._give_up(ticket, ledger=ledger)
        self.phase, self.gone_at = Phase.GONE, at

    def _give_up(self, ticket: int, *, ledger: Ledger) -> None:
        index, sequence = self.in_flight.pop(ticket)
        ledger.failed(index)
        if sequence is not None and not self.wedged and self.engine is not None and sequence.state is not State.FINISHED:
            del self._by_sequence[sequence.identity]
            self.engine.abort(sequence)

    def view(self, *, epoch: datetime, namespace: str, service: str) -> PodView:
        """The pod as the registry would hold it."""

        def moment(at: float) -> datetime:
            return epoch + timedelta(seconds=at)

        ready = self.phase is Phase.READY
        ended = None
        if self.crashed_at is not None:
            ended = Termination(exit_code=1, reason="Error", message="", finished_at=moment(self.crashed_at))
        return PodView(
            namespace=namespace,
            name=self.name,
            uid=self.name,
            service=service,
            phase="Running",
            ready=ready,
            ready_since=moment(self.ready_since) if ready else None,
            created=moment(self.created),
            deleting=self.phase is Phase.DRAINING,
            pod_template_hash=self.template.config_hash,
            config_hash=self.template.config_hash,
            args=self.template.args,
            restarts=self.restarts,
            waiting_reason="CrashLoopBackOff" if self.restarts and not ready else None,
            unschedulable=None,
            last_termination=ended,
            container_started_at=None,
        )
