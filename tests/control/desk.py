"""One service over many ticks of `decide`, without API server, Prometheus or time: the workload follows at once.

Every status is sent through its wire form, and held against I1 to I12.
"""

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.api.cases import changed
from tests.builders import NOW as AT
from tests.builders import WINDOW, engine, latency, no_answer, nobody, observation
from tests.control.crd_schema import require_valid
from tests.invariants.moment import Seen
from tests.invariants.witness import Witness

from vllm_autotuner.api.conditions import Condition, ConditionStatus, ConditionType
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidService, VLLMService, parse_service
from vllm_autotuner.api.status import Analysis, VLLMServiceStatus, parse_status
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.change.trial_deployments import Track, Trial, trials
from vllm_autotuner.change.verification import Confirmed, Verification
from vllm_autotuner.change.world import Rollout, Variant, Variants
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.control.decide.inputs import Inputs, OperatorState, Workload, wanted_replicas
from vllm_autotuner.control.decide.tick import Decision, decide
from vllm_autotuner.control.read.service_memory import ServiceMemory
from vllm_autotuner.control.write.announcements import announcements
from vllm_autotuner.diagnosis.diagnose import History
from vllm_autotuner.guardrails.mode_ceiling import NO_LIMITS, Limits
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.workload.rendering import rendered_hash

START = datetime.fromtimestamp(AT, tz=UTC)
TICK = timedelta(seconds=15)

SPEC: Mapping[str, Any] = {
    "model": {"name": "Qwen/Qwen3-0.6B"},
    "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 64},
    "replicas": 1,
    "objectives": {"ttft": {"target": "2s"}, "tpot": {"target": "50ms"}},
    "tuning": {
        "mode": "Automatic",
        "maxNumSeqs": {"min": 16, "max": 256},
        "strategy": {"warmUp": "15s", "analysis": "90s", "bake": "30s"},
    },
}
SCALED: Mapping[str, Any] = {"replicas": ..., "scaling": {"minReplicas": 1, "maxReplicas": 8}}

CAPPED = observation(engine(running=64.0, waiting=100.0, kv=0.32), ttft=latency(6.0))
"""Every seat is taken, the pool is a third full: 128 seats help."""
HELPED = observation(engine(running=120.0, kv=0.6), ttft=latency(0.4), tpot=latency(0.03), itl=latency(0.03))
HARMED = observation(engine(running=128.0, kv=0.64), ttft=latency(0.4), tpot=latency(0.09), itl=latency(0.09))
"""The queue is gone, and tokens come at 90 ms: over their objective of 50."""
OVERLOADED = observation(engine(running=39.0, waiting=9.0), ttft=latency(6.0))
HEALTHY = observation()
IDLE = observation(engine(running=0.0, kv=0.0, finished=0.0, generation_tokens=0.0, prompt_tokens=0.0))
WEDGED = observation(engine(running=39.0, waiting=9.0, stalled_for=200.0))
DEFERRED = observation(engine(deferred=7.0))
BLIND = observation(problem=no_answer())
NO_SERIES = nobody()
UNCLEAR = observation(ttft=latency(9.0))


@dataclass
class Desk:
    """What the API server would hold, and what the leader would remember."""

    spec: dict[str, Any] = field(default_factory=lambda: changed(SPEC, {}))
    generation: int = 1
    status: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    history: History = field(default_factory=History)
    now: datetime = START
    watching_since: datetime = START - timedelta(hours=1)
    events: list[Event] = field(default_factory=list)
    writes: int = 0
    last: Decision | None = None
    newest_since: datetime = START
    limits: Limits = NO_LIMITS
    refresh_due: bool = True
    witness: Witness = field(default_factory=Witness)

    def edit(self, **changes: Any) -> None:
        """A user's edit; `__` stands for a dot."""
        # Copies: a later edit must not reach into the table that this one came from.
        fresh = deepcopy(changes)
        self.spec = changed(self.spec, {name.replace("__", "."): value for name, value in fresh.items()})
        self.generation += 1

    @property
    def body(self) -> dict[str, Any]:
        """The object as the API server would hold it."""
        return {
            "metadata": {
                "name": "chat",
                "namespace": "prod",
                "uid": "u-1",
                "generation": self.generation,
                "annotations": self.annotations,
            },
            "spec": self.spec,
            "status": self.status,
        }

    @property
    def parsed(self) -> VLLMService | InvalidService:
        return parse_service(self.body)

    @property
    def service(self) -> VLLMService:
        parsed = self.parsed
        assert isinstance(parsed, VLLMService), parsed
        return parsed

    @property
    def read(self) -> VLLMServiceStatus:
        return parse_status(self.status)

    @property
    def seats(self) -> int | None:
        """What the workload is asked to run now."""
        return effective_knobs(self.service.spec, self.read).max_num_seqs

    @property
    def analysis(self) -> Analysis:
        """What has been measured of the change under way."""
        change = self.read.active_change
        assert change is not None
        assert change.analysis is not None
        return change.analysis

    @property
    def replicas(self) -> int | None:
        return wanted_replicas(self.service, self.read)

    def rollout(self, **changes: Any) -> Rollout:
        """Of a Deployment that follows at once, but for what is named."""
        service = self.service
        count = wanted_replicas(service, service.status) or 0
        follows = Rollout(
            config_hash=rendered_hash(service, effective_knobs(service.spec, service.status)),
            rolled_out=True,
            settled=True,
            ready=count,
            replicas=count,
            newest_since=self.newest_since,
        )
        return replace(follows, **changes)

    def variants(self, seen: Observation) -> Variants:
        """The trials that the status asks for, ready at once; their pods show what the service's show."""
        service = self.service

        def variant(trial: Trial) -> Variant:
            found = Rollout(
                config_hash=rendered_hash(service, trial.knobs), rolled_out=True, settled=True, ready=1, replicas=1
            )
            return Variant(rollout=found, observation=replace(seen, at=self.now.timestamp()))

        made = {trial.track: variant(trial) for trial in trials(service.status)}
        return Variants(canary=made.get(Track.CANARY), baseline=made.get(Track.BASELINE))

    def inputs(
        self, seen: Observation, *, rollout: Rollout | None = None, verification: Verification | None = None
    ) -> Inputs:
        service = self.service
        where = rollout if rollout is not None else self.rollout()
        return Inputs(
            service=service,
            observation=replace(seen, at=self.now.timestamp()),
            workload=Workload(
                rollout=where,
                variants=self.variants(seen),
                verification=verification or Confirmed("1 pod(s) report it"),
                hash_of=lambda knobs: rendered_hash(service, knobs),
                hash_version=1,
                pods=where.ready,
                selector="vllm-autotuner.dev/service=chat",
            ),
            operator=OperatorState(
                watching_since=self.watching_since, epoch=1, limits=self.limits, refresh_due=self.refresh_due
            ),
            history=self.history,
            now=self.now,
        )

    def tick(
        self, seen: Observation, *, rollout: Rollout | None = None, verification: Verification | None = None
    ) -> Decision:
        """One tick, a quarter of a minute after the one before."""
        self.now += TICK
        service = self.service
        self.look(rollout)
        decision = decide(self.inputs(seen, rollout=rollout, verification=verification))
        self.history, self.last = decision.history, decision
        self.events += announcements(service, decision.status, ended=decision.ended)
        written = to_wire(decision.status)
        assert parse_status(written) == decision.status, (
            "the status does not survive the way to the API server and back"
        )
        require_valid("status", written)
        self.writes += written != self.status
        before, self.status = self.replicas, written
        assert self.look(rollout) == []
        if self.replicas != before:
            self.newest_since = self.now
        return decision

    def look(self, rollout: Rollout | None) -> list[str]:
        """What does not hold of what is written now. A rollout that a test has made is not the operator's doing."""
        endings = [one.reason for one in self.events]
        return self.witness.look(
            Seen(
                service=self.body,
                at=self.now,
                ready=(rollout or self.rollout()).ready,
                told=Counter(endings),
                settled=True,
                harmed=rollout is not None,
            )
        )

    def ticks(self, count: int, seen: Observation, **changed: Any) -> Decision:
        for _ in range(count):
            self.tick(seen, **changed)
        assert self.last is not None
        return self.last

    def until(self, state: str | None, seen: Observation, *, at_most: int = 40) -> None:
        """Tick until the active change is in `state` (None: there is none)."""
        states = []
        for _ in range(at_most):
            self.tick(seen)
            change = self.read.active_change
            states.append(change.state.value if change is not None else None)
            if states[-1] == state:
                return
        raise AssertionError(f"never {state}: {states}")

    def restart(self) -> None:
        """Another leader: nothing survives but the status."""
        self.history, self.watching_since = ServiceMemory().of(self.service), self.now

    def condition(self, kind: ConditionType) -> Condition | None:
        return next((one for one in self.read.conditions if one.type == kind), None)

    def is_true(self, kind: ConditionType) -> bool:
        found = self.condition(kind)
        return found is not None and found.status is ConditionStatus.TRUE

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]


def desk(**changes: Any) -> Desk:
    """A service with SPEC but for what is named; `__` stands for a dot."""
    return Desk(spec=changed(SPEC, {name.replace("__", "."): value for name, value in changes.items()}))


def scaled(**changes: Any) -> Desk:
    return desk(**{**SCALED, **changes})


assert timedelta(seconds=WINDOW) == 2 * TICK


def reach(state: str, **changes: Any) -> Desk:
    """A service whose change from 64 to 128 seats has come to `state`."""
    found = desk(**changes)
    found.until("Provisioning", CAPPED)
    if state == "Held":
        found.until("Analyzing", HELPED)
        found.until("Held", BLIND)
    elif state == "RollingBack":
        found.tick(CAPPED, rollout=found.rollout(settled=False, ready=1, crashed="OutOfMemory: CUDA out of memory"))
    elif state != "Provisioning":
        found.until(state, HELPED)
    change = found.read.active_change
    assert change is not None
    assert change.state.value == state
    return found
