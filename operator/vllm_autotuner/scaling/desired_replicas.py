"""Computes the desired number of replicas: the entry point of scaling. Pure.

More at once: when requests have waited for capacity for as long as the user says, which needs no model; when more is
late than the objectives allow, and by the capacity of one replica more of them are needed.
Fewer, one at a time: when the rest carry the highest load of the stabilization time by the low end of their capacity.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.api.spec import Scaling
from vllm_autotuner.api.wording import counted
from vllm_autotuner.diagnosis.case import Case, busy_batch, makes_no_token, not_exported, queues, reaches_behind
from vllm_autotuner.diagnosis.classes import SLOW_TOKENS, DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.overloaded import first_tokens_wait
from vllm_autotuner.diagnosis.prefill_bound import BUSY
from vllm_autotuner.engine.startup_log import StartupReason
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import number
from vllm_autotuner.performance.capacity import Capacity, capacity, replicas_for
from vllm_autotuner.planning.capped_value import LARGEST_STEP
from vllm_autotuner.planning.current_replica import STRETCH, UnknownReplica, limits_of, rate_now, with_silent
from vllm_autotuner.planning.situation import RUNS_AWAY, Situation
from vllm_autotuner.planning.worth import MET
from vllm_autotuner.scaling.backlog import ENDS_WITHIN, ends_by_itself
from vllm_autotuner.scaling.error_budget import budget_spent, late_for
from vllm_autotuner.scaling.failed_scale_ins import most_too_few, tried_again_from
from vllm_autotuner.scaling.request_rate import REMEMBERED, busiest_with_prompts, peak_rate, peak_tokens_per_second
from vllm_autotuner.scaling.supply import Scale, Supply

__all__ = ["SCALE_OUT_ON", "desired_replicas", "hides_queue"]

SCALE_OUT_ON: Final = frozenset(
    {
        DiagnosisClass.OVERLOADED,
        DiagnosisClass.PREEMPTION_THRASH,
        DiagnosisClass.KV_CACHE_SATURATED,
        DiagnosisClass.CONCURRENCY_CAPPED,
        DiagnosisClass.PREFILL_BOUND,
    }
)
"""Classes in which requests wait for capacity. Wedged, DeferredQueue and MetricsBlind never scale out, nor does
RunawayOutputs, even if it only contributes."""
LATELY: Final = "more was late in the last minutes than they allow"
UNQUEUED: Final = frozenset({DiagnosisClass.PREFILL_BOUND, DiagnosisClass.PREEMPTION_THRASH})
"""The classes of `SCALE_OUT_ON` that can hold without a queue; then no request has waited."""


def hides_queue(primary: DiagnosisClass, *, case: Case) -> bool:
    """Whether the class is about slow tokens while TTFT is late because of a queue: more replicas help then."""
    return primary in SLOW_TOKENS and first_tokens_wait(case)


def desired_replicas(supply: Supply, *, scaling: Scaling, situation: Situation, now: datetime) -> Scale:
    """Return the desired number of replicas; equal to `supply.current` if nothing is to be done.

    Free room on nodes is not checked: a pending replica does no harm, makes a node autoscaler add nodes, and may
    preempt pods of lower priority.
    """
    current, diagnosis, case = supply.current, situation.diagnosis, situation.case
    inside = max(scaling.min_replicas, min(scaling.max_replicas, current))
    if inside != current:
        return Scale(replicas=inside, reason=f"spec.scaling allows {scaling.min_replicas} to {scaling.max_replicas}")
    held = now - datetime.fromtimestamp(diagnosis.since, tz=now.tzinfo)
    if diagnosis.primary is DiagnosisClass.IDLE and held >= scaling.scale_in.stabilization:
        return _from_idle(supply, held=held, scaling=scaling, observation=case.observation)
    never = _never(situation)
    if never is not None and diagnosis.primary is not DiagnosisClass.IDLE:
        return Scale(replicas=current, reason=never)
    replica = situation.replica
    known = None
    if not isinstance(replica, UnknownReplica):
        known = capacity(replica, limits=limits_of(case.targets)).times(case.observation.cores_per_pod)
    question = _Question(
        supply=supply, scaling=scaling, diagnosis=diagnosis, case=case, capacity=known, held=held, now=now
    )
    # Between two requests that are minutes apart a service is idle, and never for long.
    return question.fewer() or (question.more() if never is None else Scale(replicas=current, reason=never))


def _never(situation: Situation) -> str | None:
    primary = situation.diagnosis.primary
    if primary not in SCALE_OUT_ON | SLOW_TOKENS | MET:
        return f"{primary.value} does not call for scaling"
    return RUNS_AWAY if situation.runs_away else None


def _from_idle(supply: Supply, *, held: timedelta, scaling: Scaling, observation: Observation) -> Scale:
    """Scale in directly to the minimum."""
    current = supply.current
    if not supply.rolled_out:
        return Scale(replicas=current, reason="idle, but pods are being replaced, and the new ones may not start")
    if current <= scaling.min_replicas:
        return Scale(replicas=current, reason="idle, at scaling.minReplicas")
    if not observation.everybody_reports:
        return Scale(replicas=current, reason="not all replicas report metrics; a silent one may be busy")
    return Scale(replicas=scaling.min_replicas, reason=f"idle for {held.total_seconds():.0f} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Everything known at this moment."""

    supply: Supply
    scaling: Scaling
    diagnosis: Diagnosis
    case: Case
    capacity: Capacity | None
    """Of one replica; None if not known: then only requests that wait add one."""
    held: timedelta
    """How long the class has been named."""
    now: datetime

    @property
    def _stable(self) -> timedelta:
        return self.scaling.scale_in.stabilization

    @property
    def _newest(self) -> float | None:
        return None if self.supply.newest_since is None else self.supply.newest_since.timestamp()

    @property
    def _same_pods_since(self) -> float | None:
        """Unix seconds at which a pod last came or went: after a scale-in the newest that is left may be older."""
        moments = (self.supply.newest_since, self.supply.pods_changed_at)
        return max((moment.timestamp() for moment in moments if moment is not None), default=None)

    def more(self) -> Scale:
        """The desired replicas, `supply.current` or more, and why."""
        current = self.supply.current
        waits = self._why_not_for_waiting()
        if waits is None:
            # What waits is proof enough, whatever the model says of those that serve.
            wanted = max(current + 1, self._needed_now() or 0)
            return self._to(wanted, why=f"demand exceeds capacity: {self.diagnosis.message}")
        late = self._why_not_for_lateness()
        if late is None:
            # Between two bursts, or by a little, no class is named for it.
            told = LATELY if self.diagnosis.primary in MET else self.diagnosis.message
            wanted = (self._needed_now() or current) + self._fails_alone()
            return self._to(wanted, why=f"objectives are missed: {told}")
        queued = self.diagnosis.primary in SCALE_OUT_ON or self._hidden()
        return Scale(replicas=current, reason=waits if queued else late)

    def _to(self, wanted: int, *, why: str) -> Scale:
        current = self.supply.current
        most = min(max(current + 1, current * LARGEST_STEP), self.scaling.max_replicas)
        # While replicas are starting, only what those that serve are known to lack beyond them is added.
        return Scale(replicas=max(current, min(wanted, most)), reason=why, lacking=True)

    def _hidden(self) -> bool:
        return hides_queue(self.diagnosis.primary, case=self.case)

    def _why_not_for_waiting(self) -> str | None:
        """Return why waiting requests add no replica; None if they do."""
        primary, seen, newest = self.diagnosis.primary, self.case.observation, self.supply.newest_since
        hidden = self._hidden()
        if primary not in SCALE_OUT_ON and not hidden:
            return f"{primary.value} does not call for scaling"
        if not queues(seen) and (primary in UNQUEUED or not _waits_now(seen)):
            return "no requests wait for capacity"
        if primary is DiagnosisClass.CONCURRENCY_CAPPED and not _waits_now(seen):
            return "the burst that exceeded the slots is over"
        # The classes require that requests waited for most of the window before the class was named. A class that only
        # hides the queue says nothing of its age.
        waited = timedelta(seconds=late_for(self.case)) if hidden else self.held + timedelta(seconds=seen.window)
        if newest is not None:
            waited = min(waited, self.now - newest)
        if waited < self.scaling.scale_out.waiting_for:
            threshold = self.scaling.scale_out.waiting_for.total_seconds()
            return f"demand has exceeded capacity for {waited.total_seconds():.0f} s (threshold {threshold:.0f} s)"
        if (why := self._why_not_yet() or self._why_uneven()) is not None:
            return why
        return self._why_it_drains()

    def _why_it_drains(self) -> str | None:
        within = max(ENDS_WITHIN, self.supply.serves_in)
        return ends_by_itself(self.case.observation, since=self._newest, within=within)

    def _why_uneven(self) -> str | None:
        """Say that requests wait where the others have room; None if not, or if the load of all is not known.

        One more replica gets its share of what the router shares out, and the full engine what it is sent all the same.
        """
        engines = self.case.observation.engines
        full = [engine for engine in engines if engine.moments[-1].waiting > 0]
        others = [busy_batch(engine) for engine in engines if engine.moments[-1].waiting <= 0]
        needed = self._needed_now()
        if not full or 2 * len(full) >= len(engines) or needed is None or needed > self.supply.current:
            return None
        if 2 * max(others) > min(map(busy_batch, full)):
            return None
        queue = f"{counted(len(full), 'engine')} of {len(engines)} {'has' if len(full) == 1 else 'have'} a queue"
        return f"{queue} while the others have room: look at how requests are routed"

    def _why_not_for_lateness(self) -> str | None:
        """Return why late tokens add no replica; None if they do."""
        seen = self.case.observation
        if queues(seen):
            # Where first tokens are in time and tokens are not, the queue is no reason, and no reason to wait.
            slow = self.diagnosis.primary in SLOW_TOKENS and not self._hidden()
            if not slow or any(makes_no_token(engine, window=seen.window) for engine in seen.engines):
                # The user says how long requests may wait; an engine that hangs is told from a busy one in that time.
                return "requests wait, but not yet for spec.scaling.scaleOut.waitingFor"
            if (why := self._why_it_drains()) is not None:
                return why
        if not self._is_late_beyond_chance():
            return "late requests are within the error budget"
        if self._newest is not None and reaches_behind(self.case, self._newest):
            return "the measurements still cover the time before the newest replica"
        if (why := self._why_not_yet()) is not None:
            return why
        if self.capacity is None or rate_now(seen) is None:
            return "nothing is known of what a replica serves within the objectives"
        there = self.supply.current - self._fails_alone()
        return "by the capacity model another replica would not help" if (self._needed_now() or 0) <= there else None

    def _is_late_beyond_chance(self) -> bool:
        # Five minutes: over ten, one such stretch in five was late beside others that were not (closed loop).
        lately, newest = min(self._stable, timedelta(seconds=STRETCH)), self._newest
        if budget_spent(self.case, over=lately, since=newest, beyond_chance=True):
            return True
        # And all that is remembered: of few requests twice as many may be late by chance, but not for half an hour.
        # A burst that is over needs no replica.
        still = budget_spent(self.case, over=lately, since=newest, beyond_chance=False)
        return still and budget_spent(self.case, over=REMEMBERED, since=self._same_pods_since, beyond_chance=True)

    def _why_not_yet(self) -> str | None:
        supply = self.supply
        if supply.current >= self.scaling.max_replicas:
            return f"at scaling.maxReplicas ({self.scaling.max_replicas})"
        starting = supply.current - supply.ready - self._fails_alone()
        if starting > 0 and (self._needed_now() or 0) <= supply.ready + starting:
            return f"{starting} replica(s) are still starting"
        return None

    def _fails_alone(self) -> int:
        """1 if a single pod is failing to start, so that the others are all there will be; else 0.

        Several fail for a reason that another one would share, and one without a node leaves none for the next.
        """
        pods = self.case.observation.pods
        failing = () if pods is None else [pod.failure for pod in pods.failing if pod.failure is not None]
        alone = len(failing) == 1 and failing[0].reason is not StartupReason.UNSCHEDULABLE
        return 1 if alone and self.supply.ready < self.supply.current else 0

    def _needed_now(self) -> int | None:
        """Replicas for the rate of now; one more where the model is within noise of agreeing with what is late."""
        rate, known = rate_now(self.case.observation), self.capacity
        if rate is None or known is None:
            return None
        least = min(known.low, known.rate * (1 - NOISE))
        likely, surely = replicas_for(rate, known.rate), replicas_for(rate, least)
        one_more = max(1, self.supply.ready) + 1
        if likely is None:
            return None
        return min(
            max(likely, min(surely or one_more, one_more)), self._enough_for_all(known, share=least / known.rate)
        )

    def _enough_for_all(self, known: Capacity, *, share: float) -> int:
        """Replicas that hold every request there is within the objectives, where requests take longer than a window.

        What began within one window is no rate yet then: of jobs of ten minutes, twenty that came at once are twenty.
        `share`: of its batch that a replica surely serves within the objectives.
        """
        seen = self.case.observation
        told = sum(max(moment.running + moment.waiting for moment in engine.moments) for engine in seen.engines)
        each = known.batch * share * seen.cores_per_pod
        if self._lasted(told) <= seen.window or not each > 0:
            return self.scaling.max_replicas
        return max(1, math.ceil(with_silent(told, seen=seen) / each))

    def _lasted(self, held: float) -> float:
        """Seconds that a request takes: as measured, else by Little's law, of so many that are held."""
        seen = self.case.observation
        if (measured := number(seen.e2e.mean)) is not None:
            return measured
        ended = seen.finished_per_second
        return held / ended if ended else math.inf

    def fewer(self) -> Scale | None:
        """One replica fewer if the rest carry the load, unless that number failed at such a load before; else None.

        A replica that was added stays for the stabilization time: the figures of all of that time decide.
        """
        supply, seen = self.supply, self.case.observation
        current = supply.current
        since = self._same_pods_since
        whole = (
            supply.rolled_out and supply.ready == current and len(seen.engines) >= current and seen.everybody_reports
        )
        if current <= self.scaling.min_replicas or not whole or not self._may_be_spare() or _a_burst_has_begun(seen):
            return None
        if since is not None and self.now.timestamp() - since < self._stable.total_seconds():
            return None
        rests_until = tried_again_from(current - 1, supply.failed, stabilization=self._stable)
        if rests_until is not None and self.now < rests_until:
            return None
        lately = min(self._stable, REMEMBERED)
        rate, known = peak_rate(seen, over=lately), self.capacity
        if rate is None or known is None:
            return None
        enough = replicas_for(rate, known.low)
        if enough is None or enough >= current:
            return None
        if missing := not_exported(self.case, seen.engines):
            why = f"without {', '.join(missing)} (not exported, or 0 under load) whether fewer replicas do is unknown"
            return Scale(replicas=current, reason=why)
        # Chance excuses nothing here: a replica is taken away where it is known that nothing is late.
        if budget_spent(self.case, over=timedelta(days=1), since=since, beyond_chance=False):
            return None
        load = peak_tokens_per_second(seen, over=lately)
        against = 0 if load is None else most_too_few(supply.failed, load=load)
        if against >= current - 1:
            return Scale(replicas=current, reason=f"{against} replica(s) were too few at this load before")
        prompts = min(1.0, busiest_with_prompts(seen, over=lately) * current / (current - 1))
        if prompts > BUSY.limit:
            why = f"the prompts of the last {format_duration(lately)} would take {prompts:.0%} of the time of each"
            return Scale(replicas=current, reason=f"{current - 1} replica(s) may be too few: {why}")
        return Scale(
            replicas=current - 1,
            reason=f"{current - 1} replica(s) carry the highest load of the last {format_duration(lately)}: "
            f"{rate:.2f} requests/s, of which each serves at least {known.low:.2f} within the objectives",
            foretold=True,
        )

    def _may_be_spare(self) -> bool:
        """Whether to check if fewer are enough: `Healthy` must last, because it also holds between two bursts."""
        match self.diagnosis.primary:
            case DiagnosisClass.UNDERUTILIZED | DiagnosisClass.IDLE:
                return True
            case DiagnosisClass.HEALTHY:
                return self.held >= self._stable
            case _:
                return False


def _a_burst_has_begun(seen: Observation) -> bool:
    """Whether more requests came than are served, in a window whose class does not tell of it yet."""
    waiting = sum(engine.moments[-1].waiting for engine in seen.engines)
    running = sum(engine.moments[-1].running for engine in seen.engines)
    return seen.pressure > 1 or waiting > NOISE * running


def _waits_now(seen: Observation) -> bool:
    return any(engine.moments[-1].waiting > 0 for engine in seen.engines)
