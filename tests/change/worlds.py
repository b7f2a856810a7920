"""A change of max-num-seqs from 64 to 96 in each of its states, and a world in which it does well."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.builders import NOW as AT
from tests.builders import engine, latency, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Strategy, StrategyType
from vllm_autotuner.api.status import (
    ActiveChange,
    Analysis,
    ChangeState,
    ChangeTarget,
    ConfigRef,
    Measurement,
    TrialRef,
)
from vllm_autotuner.change.verdict import measure
from vllm_autotuner.change.verification import Confirmed
from vllm_autotuner.change.world import Rollout, Variant, Variants, World
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import Absence, NoData

NOW = datetime.fromtimestamp(AT, tz=UTC)
OLD, NEW = "hash-of-64", "hash-of-96"
TARGETS = targets(ttft=2.0, tpot=0.05)
STRATEGY = Strategy(warm_up=timedelta(seconds=60), analysis=timedelta(minutes=5))


def seen(
    *,
    ttft: float = 0.4,
    tpot: float = 0.03,
    tokens: float = 30_000.0,
    cache: float | None = None,
    at: datetime = NOW,
) -> Observation:
    """One window: seconds, output tokens in it, and tokens that the KV cache holds."""
    one = engine(generation_tokens=tokens, pool=KVPool(tokens=None if cache is None else int(cache)))
    found = observation(one, ttft=latency(ttft), tpot=latency(tpot), itl=latency(tpot))
    return replace(found, at=at.timestamp())


def silent(at: datetime = NOW) -> Observation:
    return replace(observation(problem=NoData(Absence.PROVIDER_ERROR, "connection refused")), at=at.timestamp())


BEFORE = measure(seen(ttft=5.0, tpot=0.02, tokens=15_000.0), targets=TARGETS)
"""Requests waited: TTFT far over its objective of 2 s."""


def change(state: ChangeState, **changed: Any) -> ActiveChange:
    given = ActiveChange(
        id="c1",
        generation=1,
        knob="maxNumSeqs",
        from_value="64",
        to_value="96",
        from_=ConfigRef(max_num_seqs=64, config_hash=OLD),
        to=ConfigRef(max_num_seqs=96, config_hash=NEW),
        target=ChangeTarget.TTFT,
        state=state,
        state_reason="as it was",
        state_since=NOW,
        deadline=NOW + timedelta(minutes=10),
        started_at=NOW - timedelta(minutes=5),
        baseline=BEFORE,
    )
    return given.updated(**changed)


def canary_change(state: ChangeState, *, baseline: bool = True, **changed: Any) -> ActiveChange:
    """The same change beside three replicas."""
    given = change(
        state,
        strategy=StrategyType.CANARY,
        canary_ref=TrialRef(name="chat-t-c1", config_hash=NEW) if state is not ChangeState.BAKING else None,
        baseline_ref=TrialRef(name="chat-b-c1", config_hash=OLD) if baseline else None,
        promoted=state in (ChangeState.PROMOTING, ChangeState.BAKING),
    )
    return given.updated(**changed)


def rollout(config_hash: str | None = NEW, *, settled: bool = True, **changed: Any) -> Rollout:
    given = Rollout(config_hash=config_hash, rolled_out=settled, settled=settled, ready=1 if settled else 0, replicas=1)
    return replace(given, **changed)


def variant(config_hash: str | None = NEW, *, observation: Observation | None = None, **changed: Any) -> Variant:
    """A Deployment of one ready pod that does well, but for what is named (fields of Rollout)."""
    return Variant(rollout=rollout(config_hash, **changed), observation=observation or seen())


def canary_world(now: datetime = NOW, **changed: Any) -> World:
    """Three replicas with the old configuration, a canary that does well, and a fresh pod with the old one."""
    given = world(
        now,
        rollout=rollout(OLD, ready=3, replicas=3),
        observation=seen(ttft=5.0, tpot=0.02, at=now),
        variants=Variants(
            canary=variant(observation=seen(at=now)),
            baseline=variant(OLD, observation=seen(ttft=5.0, tpot=0.02, at=now)),
        ),
    )
    return replace(given, **changed)


def world(now: datetime = NOW, **changed: Any) -> World:
    given = World(
        now=now,
        rollout=rollout(),
        observation=seen(at=now),
        blind=False,
        targets=TARGETS,
        strategy=STRATEGY,
        verification=Confirmed("1 pod(s) report maxNumSeqs=96"),
    )
    return replace(given, **changed)


def measured(count: int, *, ttft: float = 0.4, tpot: float = 0.03, start: datetime = NOW) -> tuple[Measurement, ...]:
    return tuple(
        measure(seen(ttft=ttft, tpot=tpot, at=start + timedelta(seconds=30 * index)), targets=TARGETS)
        for index in range(count)
    )


def analysis(*, good: int = 0, bad: int = 0, row: int = 0, since: datetime = NOW, **levels: float) -> Analysis:
    return Analysis(
        started_at=since,
        windows_good=good,
        windows_bad=bad,
        consecutive_bad=row,
        last=measured(good + bad, start=since, **levels),
    )


def knobs(seats: int | None) -> EngineKnobs:
    return EngineKnobs(max_num_seqs=seats)
