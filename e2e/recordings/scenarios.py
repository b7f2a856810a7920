"""What is done to a real engine while it is recorded: flags, load by phases, and blows.

The model is a toy on a CPU: rates are set by what it serves, shapes and orders are what carries over.
Must not: say what held. Load generators lag behind their rates; the truth is read from the samples afterwards.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["SCENARIOS", "Blow", "Phase", "Scenario"]


class Blow(StrEnum):
    """Something that happens to the first engine at the start of a phase."""

    STOP_CORE = "the engine core is stopped (SIGSTOP)"
    CONTINUE_CORE = "the engine core goes on (SIGCONT)"
    RESTART = "the engine is killed and started again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of load. `rate`: open loop, requests per second; `clients`: closed loop, instead."""

    seconds: float
    rate: float = 0.0
    clients: int = 0
    prompt: tuple[int, int] = (50, 200)
    output: tuple[int, int] = (50, 150)
    grammar: bool = False
    """Each request brings a grammar of its own, which the engine must compile before it may run."""
    first_only: bool = False
    """All of it goes to the first engine."""
    blow: Blow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Flags of the engine and what is done to it."""

    phases: tuple[Phase, ...]
    max_num_seqs: int = 64
    max_model_len: int = 2048
    blocks: int = 1024
    """Of 128 tokens each."""
    engines: int = 1
    args: tuple[str, ...] = ()
    core_apart: bool = False
    """The engine core in a process of its own, as in production: only then can it be stopped alone."""
    environment: Mapping[str, str] = field(default_factory=dict)


LIGHT: Final = Phase(seconds=45, rate=1)
SHORT_LIGHT: Final = Phase(seconds=40, rate=1, prompt=(50, 100), output=(20, 40))

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "preemption-thrash": Scenario(
        blocks=24, phases=(LIGHT, Phase(seconds=90, clients=40, output=(300, 500)), Phase(seconds=60, rate=0.5))
    ),
    "deferred-queue": Scenario(
        phases=(LIGHT, Phase(seconds=90, rate=6, output=(20, 40), grammar=True), Phase(seconds=60, rate=0.5))
    ),
    "prefill-bound": Scenario(
        max_model_len=8192,
        phases=(
            SHORT_LIGHT,
            Phase(seconds=100, clients=24, prompt=(6000, 7500), output=(2, 6)),
            Phase(seconds=60, rate=0.5, output=(20, 40)),
        ),
    ),
    "tpot-knee": Scenario(
        phases=(
            Phase(seconds=45, clients=1),
            Phase(seconds=45, clients=4),
            Phase(seconds=90, clients=32),
            Phase(seconds=60, clients=2),
        )
    ),
    "runaway-outputs": Scenario(
        max_model_len=512,
        phases=(
            Phase(seconds=90, rate=1, prompt=(50, 100), output=(20, 60)),
            Phase(seconds=150, rate=0.5, prompt=(50, 60), output=(430, 450)),
            Phase(seconds=50, rate=1, prompt=(50, 100), output=(20, 60)),
        ),
    ),
    "idle-after-load": Scenario(phases=(LIGHT, Phase(seconds=45, clients=6), Phase(seconds=120))),
    "one-of-two-pods": Scenario(
        engines=2,
        max_num_seqs=4,
        phases=(Phase(seconds=45, rate=1.5), Phase(seconds=90, clients=24, first_only=True), Phase(seconds=60, rate=1)),
    ),
    "restart": Scenario(
        phases=(
            Phase(seconds=60, rate=1),
            Phase(seconds=240, rate=1, blow=Blow.RESTART),
        )
    ),
    "wedge": Scenario(
        core_apart=True,
        phases=(
            Phase(seconds=60, clients=4),
            Phase(seconds=150, clients=8, blow=Blow.STOP_CORE),
            Phase(seconds=60, clients=4, blow=Blow.CONTINUE_CORE),
        ),
    ),
}


def grammar(source: random.Random) -> Mapping[str, object]:
    """A grammar that nobody has compiled yet, large enough to take a while."""
    names = ["".join(source.choices("abcdefghij", k=12)) for _ in range(300)]
    properties = {name: {"type": "string", "enum": [name[:6], name[6:]]} for name in names}
    schema = {"type": "object", "properties": properties, "required": names[:3], "additionalProperties": False}
    return {"structured_outputs": {"json": schema}}
