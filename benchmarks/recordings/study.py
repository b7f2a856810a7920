"""Every recording replayed in four ways, and what each way shows.

| way | step times from | so it tests |
|---|---|---|
| recorded pace | the recording's own law, slowed as its machine was | the scheduler: queues, blocks, preemptions |
| own law | the recording's own law, at one pace | the scheduler and the form of the law |
| others' law | a law fitted without this recording (leave one out), at one pace | the law on a load it has not seen |
| others' law, recorded pace | the same, slowed as the machine was | how much of that the pace explains |

The proof rests on the first way: a queue is the sum of what came and did not leave, so a machine that others slow down
decides how long it gets. The other ways are shown beside it and promise nothing.
Must not: print, or choose what to show.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.recordings.compare import Difference, Level, differences, levels, longest_queue, named, ratio
from benchmarks.recordings.pace import fit_law, law_errors, pace_of
from benchmarks.recordings.play import configuration, play
from benchmarks.recordings.read import Description, Recorded
from benchmarks.recordings.workload import reconstruct
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.step_duration import StepLaw

__all__ = ["MOST_LEVEL_ERROR", "MOST_PREEMPTION_RATIO", "PROOF", "PROVEN_LEVELS", "Outcome", "Way", "study"]

PROOF: Final = "recorded pace"
"""The way that the proof rests on."""
MOST_LEVEL_ERROR: Final = 0.10
"""Relative error of a time-weighted level. Asked for by the project; so is the next."""
MOST_PREEMPTION_RATIO: Final = 1.5
PROVEN_LEVELS: Final = ("running", "waiting", "KV usage")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Where the step times of a replay come from."""

    name: str
    law: StepLaw
    faults: Faults
    law_median_error: float
    """Relative error of the law over the intervals of this recording; the median, and the mean without the sign."""
    law_mean_abs_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One recording replayed in one way, over all seeds."""

    way: Way
    simulated: tuple[Recorded, ...]
    """One for each seed."""
    whole: tuple[tuple[Level, ...], ...]
    """For each seed, the levels over the whole recording."""
    saturated: tuple[tuple[Level, ...], ...]
    """The same while the longest queue stood; empty without one."""
    preemptions: tuple[float | None, ...]
    """By which factor they differ, for each seed."""
    classes: tuple[tuple[Difference, ...], ...]

    @property
    def level_error(self) -> float | None:
        """The largest error of running, waiting and KV usage; None when one cannot be compared.

        Of the mean over the seeds: single lengths are not known, so one seed is one guess at them. JSON has the worst.
        """
        errors: list[float] = []
        for same in (*zip(*self.whole, strict=True), *zip(*self.saturated, strict=True)):
            mean = Level.mean_of(same)
            if mean.quantity not in PROVEN_LEVELS or mean.real == mean.simulated:
                continue
            if mean.error is None:
                return None
            errors.append(abs(mean.error))
        return max(errors, default=0.0)

    @property
    def holds(self) -> bool:
        """Whether levels, preemptions (every seed) and classes (every seed) are as promised."""
        levels_hold = self.level_error is not None and self.level_error <= MOST_LEVEL_ERROR
        preemptions_hold = all(one is not None and one <= MOST_PREEMPTION_RATIO for one in self.preemptions)
        return levels_hold and preemptions_hold and all(each.near_turn for seed in self.classes for each in seed)


def study(
    recordings: Mapping[str, tuple[Recorded, Description]], *, seeds: Sequence[int], progress: Progress
) -> Mapping[str, tuple[Outcome, ...]]:
    """Replay every recording in every way; those that need other recordings are left out where there are none.

    Raises BadRecording.
    """
    recomputed = {}
    for name, (recorded, description) in recordings.items():
        progress(f"{name}: what a preemption costs")
        recomputed[name] = _recomputed(recorded, description, seed=seeds[0])
    found = {}
    for name, (recorded, description) in recordings.items():
        outcomes = []
        for way in _ways(name, recordings, recomputed=recomputed):
            progress(f"{name}: {way.name}")
            outcomes.append(_outcome(recorded, description, way=way, seeds=seeds))
        found[name] = tuple(outcomes)
    return found


def _recomputed(recorded: Recorded, description: Description, *, seed: int) -> float:
    """Return the tokens that a preemption costs: no counter of the engine tells, the simulated one does."""
    if not recorded.preemptions[-1]:
        return 0.0
    law = fit_law({"": recorded}, recomputed={"": 0.0})
    return play(
        recorded,
        reconstruct(recorded, phases=description.phases, seed=seed),
        config=configuration(recorded, flags=description.flags, law=law),
        faults=pace_of(recorded, law=law, recomputed=0.0),
    ).recomputed_per_preemption


def _ways(
    name: str, recordings: Mapping[str, tuple[Recorded, Description]], *, recomputed: Mapping[str, float]
) -> Sequence[Way]:
    recorded, lost = recordings[name][0], recomputed[name]
    own = fit_law({name: recorded}, recomputed=recomputed)
    laws = [(PROOF, own, True), ("own law", own, False)]
    if others := {other: read for other, (read, _) in recordings.items() if other != name}:
        unseen = fit_law(others, recomputed=recomputed)
        laws += [("others' law", unseen, False), ("others' law, recorded pace", unseen, True)]
    ways = []
    for way, law, paced in laws:
        errors = law_errors(law, recorded, recomputed=lost)
        ways.append(
            Way(
                name=way,
                law=law,
                faults=pace_of(recorded, law=law, recomputed=lost) if paced else Faults(),
                law_median_error=float(np.median(errors)),
                law_mean_abs_error=fmean(np.abs(errors).tolist()),
            )
        )
    return ways


def _outcome(recorded: Recorded, description: Description, *, way: Way, seeds: Sequence[int]) -> Outcome:
    config = configuration(recorded, flags=description.flags, law=way.law)
    simulated = tuple(
        play(
            recorded,
            reconstruct(recorded, phases=description.phases, seed=seed),
            config=config,
            faults=way.faults,
        ).recorded
        for seed in seeds
    )
    queue = longest_queue(recorded)
    real = asyncio.run(named(recorded, flags=description.flags))
    return Outcome(
        way=way,
        simulated=simulated,
        whole=tuple(levels(recorded, one) for one in simulated),
        saturated=tuple(levels(recorded, one, between=queue) for one in simulated) if queue else (),
        preemptions=tuple(ratio(recorded.preemptions[-1], one.preemptions[-1]) for one in simulated),
        classes=tuple(differences(real, asyncio.run(named(one, flags=description.flags))) for one in simulated),
    )
