"""The rules that others scale by, on the same scrapes. Each says how many replicas it wants; flags stay as written.

* HPA   Kubernetes' HorizontalPodAutoscaler on the average of waiting requests per pod
* KEDA  a ScaledObject with a Prometheus trigger on the sum of waiting requests; KEDA hands it to an HPA
* WVA   llm-d's workload variant autoscaler: saturation analyser V1, and V2 by token capacity

Must not: look at anything but gauges that these tools read, or know the scenario.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from benchmarks.closedloop.scraping import Gauges

__all__ = ["Hpa", "Keda", "Rule", "Saturation", "Seen", "TokenCapacity"]

STALE_AFTER: Final = 90.0
"""Seconds without a scrape after which a pod's metric counts as missing: three scrapes of the longest interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a rule may look at."""

    now: float
    replicas: int
    """Asked for."""
    ready: int
    gauges: Mapping[str, Sequence[Gauges]]
    """By ready pod, newest last."""

    @property
    def fresh(self) -> Sequence[Gauges]:
        """The newest scrape of each pod that has a fresh one."""
        newest = (kept[-1] for kept in self.gauges.values() if kept)
        return [one for one in newest if self.now - one.time <= STALE_AFTER]

    def highest(self, window: float) -> Sequence[Gauges]:
        """Per pod `max_over_time` of each gauge over the window (seconds); pods without a sample are left out."""
        peaks = []
        for kept in self.gauges.values():
            inside = [one for one in kept if self.now - one.time < window]
            if inside:
                peaks.append(
                    Gauges(
                        inside[-1].time,
                        max(one.running for one in inside),
                        max(one.waiting for one in inside),
                        max(one.kv for one in inside),
                    )
                )
        return peaks


class Rule(Protocol):
    """Decides replicas every 15 s."""

    def wanted(self, seen: Seen) -> int:
        """How many replicas to ask for, before the bounds of the user."""
        ...


@dataclass(slots=True)
class _Hpa:
    """What every HPA does around its metric: tolerance, pace, stabilization, and its window of recommendations."""

    tolerance: float = 0.1
    """Ratios this near to 1 change nothing (--horizontal-pod-autoscaler-tolerance, default)."""
    down_window: float = 300.0
    """Seconds over which the highest recommendation holds (behavior.scaleDown.stabilizationWindowSeconds, default)."""
    _recommended: list[tuple[float, int]] = field(default_factory=list)

    def persist(self, wanted: int, *, seen: Seen) -> int:
        """Apply the default behaviour: up at once by at most the double or 4 pods per 15 s, down only when stable."""
        self._recommended = [one for one in self._recommended if seen.now - one[0] < self.down_window]
        self._recommended.append((seen.now, wanted))
        stable = max(wanted, min(seen.replicas, max(value for _, value in self._recommended)))
        fastest = max(2 * seen.replicas, seen.replicas + 4)
        return min(stable, fastest)


@dataclass(slots=True)
class Hpa:
    """Pods metric `num_requests_waiting`, AverageValue."""

    target: float = 5.0
    """Waiting requests per pod. vLLM's production stack ships 5 as its threshold (peers 1.5); GKE's guide names 3-5."""
    hpa: _Hpa = field(default_factory=_Hpa)

    def wanted(self, seen: Seen) -> int:
        """desired = ceil(pods * average / target); pods without a metric count as 0 on the way up, as target down."""
        fresh = seen.fresh
        if not fresh:
            return seen.replicas
        total, pods = sum(one.waiting for one in fresh), len(fresh)
        ratio = total / pods / self.target
        missing = seen.replicas - pods
        if missing > 0:
            assumed = 0.0 if ratio > 1 else self.target
            assumed_ratio = (total + assumed * missing) / (pods + missing) / self.target
            # Kubernetes drops the idea when the assumption turns its direction.
            turned = (assumed_ratio > 1) != (ratio > 1)
            if turned or abs(assumed_ratio - 1) <= self.hpa.tolerance:
                return self.hpa.persist(seen.replicas, seen=seen)
            return self.hpa.persist(math.ceil(assumed_ratio * (pods + missing)), seen=seen)
        if abs(ratio - 1) <= self.hpa.tolerance:
            return self.hpa.persist(seen.replicas, seen=seen)
        return self.hpa.persist(math.ceil(ratio * pods), seen=seen)


@dataclass(slots=True)
class Keda:
    """Prometheus trigger: `sum(vllm:num_requests_waiting)`, metricType AverageValue.

    KEDA's own cooldownPeriod (300 s) only guards the way from one replica to none, and no service here may have none:
    what delays scale-in is the HPA's stabilization of as many seconds.
    """

    threshold: float = 5.0
    """As production-stack's chart sets it (peers 1.5)."""
    running: bool = False
    """`sum(vllm:num_requests_running + vllm:num_requests_waiting)` instead: the threshold is then what an offline load
    test of one replica has found, 0.8 of its knee."""
    hpa: _Hpa = field(default_factory=_Hpa)

    def wanted(self, seen: Seen) -> int:
        """desired = ceil(total / threshold), unless total per replica is within the tolerance of the threshold."""
        fresh = seen.fresh
        if not fresh:
            return seen.replicas
        total = sum(one.waiting + (one.running if self.running else 0.0) for one in fresh)
        if abs(total / (self.threshold * seen.replicas) - 1) <= self.hpa.tolerance:
            return self.hpa.persist(seen.replicas, seen=seen)
        return self.hpa.persist(math.ceil(total / self.threshold), seen=seen)


@dataclass(slots=True)
class Saturation:
    """WVA V1 with its published thresholds (peers 1.3), applied by an HPA with the chart's 240 s for scale-in."""

    kv_threshold: float = 0.80
    queue_threshold: float = 5.0
    kv_spare: float = 0.10
    queue_spare: float = 3.0
    interval: float = 60.0
    window: float = 60.0
    hpa: _Hpa = field(default_factory=lambda: _Hpa(down_window=240.0))
    _due: float = 0.0
    _desired: int | None = None

    def wanted(self, seen: Seen) -> int:
        """One step up or down a minute, none while replicas are starting."""
        if seen.now >= self._due or self._desired is None:
            self._due = seen.now + self.interval
            self._desired = self._analysed(seen)
        return self.hpa.persist(self._desired, seen=seen)

    def _analysed(self, seen: Seen) -> int:
        peaks = seen.highest(self.window)
        if not peaks or seen.ready != seen.replicas:
            return seen.replicas
        free = [one for one in peaks if one.kv < self.kv_threshold and one.waiting < self.queue_threshold]
        if not free:
            return seen.replicas + 1
        spare_kv = sum(self.kv_threshold - one.kv for one in free) / len(free)
        spare_queue = sum(self.queue_threshold - one.waiting for one in free) / len(free)
        if spare_kv < self.kv_spare or spare_queue < self.queue_spare:
            return seen.replicas + 1
        if len(free) < 2 or len(free) < len(peaks):
            return seen.replicas
        fewer = len(free) - 1
        kv_after = self.kv_threshold - sum(one.kv for one in free) / fewer
        queue_after = self.queue_threshold - sum(one.waiting for one in free) / fewer
        safe = kv_after >= self.kv_spare and queue_after >= self.queue_spare
        return seen.replicas - 1 if safe else seen.replicas


@dataclass(slots=True)
class TokenCapacity:
    """WVA V2 (peers 1.3): demand and capacity in tokens of KV cache, applied by an HPA like V1.

    A replica holds k1 = kv_threshold of its pool, or k2 where that is less: what it held when it was last saturated
    (mean of ten), else derived from its flags, N = min(B * O / (I + O), S) sequences of I + O / 2 tokens. Replicas are
    added when demand is above `scale_up` of the supply, starting ones included, and taken away when what is left would
    be below `scale_down`.
    """

    seats: float
    """--max-num-seqs (S) and --max-num-batched-tokens (B), which it reads from the pod."""
    batched_tokens: float
    kv_threshold: float = 0.80
    queue_threshold: float = 5.0
    scale_up: float = 0.85
    scale_down: float = 0.70
    interval: float = 60.0
    hpa: _Hpa = field(default_factory=lambda: _Hpa(down_window=240.0))
    _due: float = 0.0
    _desired: int | None = None
    _saturated: list[float] = field(default_factory=list)

    def wanted(self, seen: Seen) -> int:
        """As many as demand asks for, once a minute."""
        if seen.now >= self._due or self._desired is None:
            self._due = seen.now + self.interval
            self._desired = self._analysed(seen)
        return self.hpa.persist(self._desired, seen=seen)

    def _analysed(self, seen: Seen) -> int:
        fresh = seen.fresh
        finished = sum(one.finished for one in fresh)
        if not fresh or not finished:
            return seen.replicas
        prompt = sum(one.prompt_tokens for one in fresh) / finished
        output = sum(one.generated_tokens for one in fresh) / finished
        held = prompt + output / 2
        for one in fresh:
            if one.waiting >= self.queue_threshold:
                self._saturated = [*self._saturated[-9:], one.kv * one.pool_tokens]
        derived = min(self.batched_tokens * output / (prompt + output), self.seats) * held
        k2 = sum(self._saturated) / len(self._saturated) if self._saturated else derived
        capacity = min(self.kv_threshold * sum(one.pool_tokens for one in fresh) / len(fresh), k2)
        demand = sum(one.kv * one.pool_tokens + one.waiting * held for one in fresh)
        if demand > self.scale_up * capacity * seen.replicas:
            return seen.replicas + math.ceil(demand / self.scale_up / capacity - seen.replicas)
        if seen.ready != seen.replicas:
            return seen.replicas
        return max(1, min(seen.replicas, math.ceil(demand / self.scale_down / capacity)))
