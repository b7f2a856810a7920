"""Simulates a service in virtual time: engines in pods behind a router, fed by a stream of requests.

Separate from the real-time driver (`driver`, `server`): here hours pass in seconds, so a policy can be tried on a day
of load. Must not: read a clock, sleep, decide anything about the service, or use metric names (`scrapes` does).
Deterministic: the same traffic, seed and calls give the same ledger, however `advance` is sliced.

    fleet = VirtualFleet(OpenLoop(RateCurve.constant(5.0), content, seed=1), seed=1)
    for _ in range(2):
        fleet.start_pod(configure(flags, profile=profile), startup=60.0)
    while fleet.now < 3600:
        fleet.advance(fleet.now + 15)  # to the next tick of the policy
        for pod in fleet.pods:
            for name, labels, value in scraped(pod):
                recording.add(Sample(name=name, labels=labels, value=value, time=None), time=fleet.now)
        ...  # decide; then for example a rolling change, new beside old:
        new = fleet.start_pod(other_config, startup=60.0)  # STARTING, READY 60 s later
        fleet.terminate(fleet.pods[0], grace=30.0)  # DRAINING, GONE when it is empty or after 30 s
    fleet.ledger.between(600, 3600).goodput(ttft=2.0, tpot=0.05)
    fleet.gpu_seconds() / 3600

`crash` and `wedge` break a pod at once, its `faults` by themselves.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from vllm_autotuner.simulation.arrivals import random_stream
from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.ledger import NO_POD, Ended, Fate, Ledger
from vllm_autotuner.simulation.routing import Router, Routing
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Outcome, Request, RequestFailed, RequestRefused
from vllm_autotuner.simulation.simulated_pod import Attempt, PodState, VirtualPod
from vllm_autotuner.simulation.traffic import ClientRequest, Traffic

__all__ = ["ClientPatience", "VirtualFleet"]

RESTART_FIRST: Final = 10.0
"""Seconds before a container that died is started again; doubles with each restart. Kubernetes' own."""
RESTART_LONGEST: Final = 300.0
"""Seconds at which that stops growing. Kubernetes' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPatience:
    """What clients do when there is no answer."""

    timeout: float = math.inf
    """Seconds for one attempt."""
    retries: int = 0
    """Further attempts where a pod died or failed, none was ready, or time was up. What is refused is not repeated."""
    pause: float = 1.0
    """Seconds before each further attempt."""


class VirtualFleet:
    """The pods of one service and the requests that they get."""

    def __init__(
        self,
        traffic: Traffic,
        *,
        routing: Routing | Router = Routing.LEAST_OUTSTANDING,
        patience: ClientPatience | None = None,
        seed: int = 0,
        started: float = 0.0,
    ) -> None:
        self.now = started
        """Everything up to here has happened. Seconds."""
        self.ledger = Ledger()
        self.arrived = 0
        """Requests that have come; each is in the ledger once it has ended."""
        self._traffic = traffic
        self._router = routing if isinstance(routing, Router) else Router(routing, seed=seed)
        self._patience = patience or ClientPatience()
        self._seed = seed
        self._pods: list[VirtualPod] = []
        self._gone_gpu_seconds = 0.0
        self._pods_so_far = 0
        self._agenda: list[tuple[float, int, Callable[[], None], Attempt | None]] = []
        """(time, order, what happens, the attempt that it is about: once that is over, nothing happens)."""
        self._order = count()

    @property
    def pods(self) -> Sequence[VirtualPod]:
        """The pods that are not gone, oldest first."""
        return tuple(self._pods)

    @property
    def in_flight(self) -> int:
        """Requests that have come and not ended."""
        return self.arrived - len(self.ledger)

    def gpu_seconds(self) -> float:
        """Return for how long GPUs were held so far, by pods that are gone as well."""
        return self._gone_gpu_seconds + sum(pod.gpu_seconds(until=self.now) for pod in self._pods)

    def start_pod(self, config: EngineConfig, *, startup: float = 0.0, faults: Faults | None = None) -> VirtualPod:
        """Add a pod now; it is ready `startup` seconds later. Faults count from there, and again after a restart."""
        number, self._pods_so_far = self._pods_so_far, self._pods_so_far + 1
        pod = VirtualPod(
            number=number, name=f"pod-{number}", config=config, faults=faults or Faults(), startup=startup,
            created=self.now,
        )  # fmt: skip
        self._pods.append(pod)
        self._boot(pod, at=self.now + startup)
        return pod

    def terminate(self, pod: VirtualPod, *, grace: float = 0.0) -> None:
        """Send the pod no more requests; it is gone when it has answered all, at the latest after `grace` seconds.

        What it has not answered then breaks off. 0 is what vLLM does on SIGTERM unless told otherwise.
        """
        if pod.state is PodState.GONE:
            return
        if not pod.under_way or grace <= 0:
            self._remove(pod, at=self.now)
            return
        pod.enter(PodState.DRAINING, at=self.now)
        self._plan(self.now + grace, lambda: self._remove(pod, at=self.now))

    def crash(self, pod: VirtualPod) -> None:
        """Let the pod's process die now. Its container starts again after a back-off, with empty queues and caches."""
        self._die(pod, restarts=pod.restarts)

    def wedge(self, pod: VirtualPod) -> None:
        """Let the pod's engine hang from now on; requests are still sent to it."""
        if pod.engine is not None:
            pod.engine.wedge(self.now)

    def advance(self, until: float) -> None:
        """Let everything happen up to a time. Raises ValueError for one that has passed."""
        if until < self.now:
            raise ValueError(f"virtual time cannot go back from {self.now} s to {until} s")
        while (at := self._next_event()) <= until:
            self._let_happen(at)
        self._step_engines(until)
        self.now = until

    def _next_event(self) -> float:
        at, agenda = self._traffic.peek(), self._agenda
        # Nearly every request ends long before its client would give up: a moment at which nothing happens is none.
        while agenda and (attempt := agenda[0][3]) is not None and attempt.over:
            heapq.heappop(agenda)
        if agenda:
            at = min(at, agenda[0][0])
        if self._traffic.reacts:
            # An answer may bring a request at the same moment: no engine may run ahead of another one's answer.
            for pod in self._pods:
                if pod.engine is not None and (due := pod.engine.next_change) is not None and due < at:
                    at = due
        return max(at, self.now)

    def _let_happen(self, at: float) -> None:
        """Let the answers come that are due, then what was planned, then what clients send."""
        self._step_engines(at)
        self.now = at
        while self._agenda and self._agenda[0][0] <= at:
            _, _, event, _ = heapq.heappop(self._agenda)
            event()
        # A client may answer at once to what happened just now: still the same moment.
        while self._traffic.peek() <= at:
            self.arrived += 1
            self._send(self._traffic.take(), attempt=1)

    def _plan(self, at: float, event: Callable[[], None], *, about: Attempt | None = None) -> None:
        heapq.heappush(self._agenda, (at, next(self._order), event, about))

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _boot(self, pod: VirtualPod, *, at: float) -> None:
        pod.enter(PodState.STARTING, at=self.now)
        restarts = pod.restarts
        self._plan(at, lambda: self._open(pod, restarts=restarts))

    def _open(self, pod: VirtualPod, *, restarts: int) -> None:
        if pod.state is not PodState.STARTING or pod.restarts != restarts:
            return
        pod.enter(PodState.READY, at=self.now)
        seed = random_stream(self._seed, "engine", pod.number, pod.restarts).getrandbits(32)
        pod.engine = SimulatedEngine(pod.config, started=self.now, faults=pod.faults, seed=seed)
        if pod.faults.crash_after is not None:
            self._plan(self.now + pod.faults.crash_after, lambda: self._die(pod, restarts=restarts))

    def _die(self, pod: VirtualPod, *, restarts: int) -> None:
        if not pod.serves or pod.restarts != restarts:
            return
        if pod.state is PodState.DRAINING:
            self._remove(pod, at=self.now)
            return
        self._break_off(pod)
        back_off = min(RESTART_FIRST * 2 ** min(pod.restarts, 16), RESTART_LONGEST)
        pod.restarts += 1
        self._boot(pod, at=self.now + back_off + pod.startup)

    def _remove(self, pod: VirtualPod, *, at: float) -> None:
        if pod.state is PodState.GONE:
            return
        pod.enter(PodState.GONE, at=at)
        pod.ended = at
        self._pods.remove(pod)
        self._gone_gpu_seconds += pod.gpu_seconds(until=at)
        self._break_off(pod)

    def _break_off(self, pod: VirtualPod) -> None:
        """Drop the engine, and with it what it had not answered."""
        pod.engine = None
        broken, pod.under_way = list(pod.under_way.values()), {}
        for attempt in broken:
            attempt.over = True
            self._failed(attempt.request, Fate.BROKEN, attempt=attempt.number, pod=pod)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _send(self, request: ClientRequest, *, attempt: int) -> None:
        ready = [pod for pod in self._pods if pod.state is PodState.READY]
        if not ready:
            self._failed(request, Fate.UNAVAILABLE, attempt=attempt, pod=None)
            return
        pod = self._router.choose(request, ready)
        assert pod.engine is not None
        sent = Request(
            arrival=self.now,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            eos_after=request.output_tokens if request.output_tokens < request.max_tokens else None,
            cached_tokens=self._router.known_tokens(request, to=pod),
            shared_tokens=request.shared_tokens,
        )
        try:
            sequence = pod.engine.submit(sent)
        except RequestRefused:
            self._end(request, Fate.REFUSED, attempt=attempt, pod=pod)
            return
        except RequestFailed:
            self._failed(request, Fate.FAILED, attempt=attempt, pod=pod)
            return
        started = Attempt(request, attempt, pod, sequence)
        pod.under_way[sequence.identity] = started
        if math.isfinite(self._patience.timeout):
            self._plan(self.now + self._patience.timeout, lambda: self._give_up(started), about=started)

    def _step_engines(self, until: float) -> None:
        found = [
            (outcome.finished, pod.number, outcome.sequence.identity, pod, outcome)
            for pod in self._pods
            if pod.engine is not None
            for outcome in pod.engine.advance(until)
        ]
        # In order of time whatever `until` is, so that no slicing shows in the ledger.
        for at, _, identity, pod, outcome in sorted(found, key=lambda each: each[:3]):
            self._answered(pod, outcome, at=at, identity=identity)

    def _answered(self, pod: VirtualPod, outcome: Outcome, *, at: float, identity: int) -> None:
        attempt = pod.under_way.pop(identity)
        attempt.over = True
        request = attempt.request
        self._router.answered(request, by=pod)
        self._record(
            request, Fate.ANSWERED, at=at, attempt=attempt.number, pod=pod, ttft=outcome.first_token - request.at,
            tpot=outcome.tpot, output_tokens=outcome.output_tokens,
        )  # fmt: skip
        if pod.state is PodState.DRAINING and not pod.under_way:
            self._remove(pod, at=at)

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.over:
            return
        attempt.over = True
        pod = attempt.pod
        del pod.under_way[attempt.sequence.identity]
        if pod.engine is not None:
            pod.engine.abort(attempt.sequence)
        self._failed(attempt.request, Fate.TIMED_OUT, attempt=attempt.number, pod=pod)
        if pod.state is PodState.DRAINING and not pod.under_way:
            self._remove(pod, at=self.now)

    def _failed(self, request: ClientRequest, fate: Fate, *, attempt: int, pod: VirtualPod | None) -> None:
        """Try again where the client does, else let the request end."""
        if attempt <= self._patience.retries:
            self._plan(self.now + self._patience.pause, lambda: self._send(request, attempt=attempt + 1))
        else:
            self._end(request, fate, attempt=attempt, pod=pod)

    def _end(self, request: ClientRequest, fate: Fate, *, attempt: int, pod: VirtualPod | None) -> None:
        self._record(
            request, fate, at=self.now, attempt=attempt, pod=pod, ttft=math.nan, tpot=math.nan, output_tokens=0
        )

    def _record(
        self, request: ClientRequest, fate: Fate, *, at: float, attempt: int, pod: VirtualPod | None, ttft: float,
        tpot: float, output_tokens: int,
    ) -> None:  # fmt: skip
        self.ledger.add(
            Ended(
                number=request.number,
                arrival=request.at,
                ended=at,
                ttft=ttft,
                tpot=tpot,
                prompt_tokens=request.prompt_tokens,
                output_tokens=output_tokens,
                pod=NO_POD if pod is None else pod.number,
                attempts=attempt,
                fate=fate,
            )
        )
        self._traffic.ended(request, at=at, output_tokens=output_tokens if fate is Fate.ANSWERED else None)
