"""The fault tests T01 to T42: what happens, what must hold, and what of it no test shows yet and why.

Apart from the tests, which carry the numbers (`@pytest.mark.fault("T17")`), because a number without a test must be
seen as well. `docs/fault-tests.md` and `make faults` are made of this and of the marks.
Must not: say that something is shown. Only a test that ran can.
"""

from dataclasses import dataclass
from typing import Final

CANARY_IN_PROCESS: Final = (
    "with canary pods on the real control plane: there for a change in place, canaries in process"
)

EACH_WRITE: Final = (
    "one run for each write on the real control plane: `make crash-points` has them, here one run crashes at each step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row."""

    number: str
    happens: str
    holds: str
    missing: str = ""
    """What of `holds` its tests do not show, with the reason."""
    untested: str = ""
    """Why there is no test of it at all. Without this, a row that has none fails."""


FAULTS: Final = (
    Fault(
        number="T01",
        happens="the operator is killed after each API write of a change that helps, and before each answer arrives",
        holds="same end as undisturbed: one change in the history, as many rollouts, one Event of each kind",
        missing="the counter of changes begins at zero in a new process: history and Events are compared instead; "
        f"{EACH_WRITE}; {CANARY_IN_PROCESS}",
    ),
    Fault(
        number="T02",
        happens="the same during the rollback of a change that hurts or does not start",
        holds="the last known good configuration serves; one rollback in the history, one Event, nothing created twice",
        missing=f"{EACH_WRITE}; {CANARY_IN_PROCESS}",
    ),
    Fault(
        number="T03",
        happens="the answer to a write is lost after the API server has carried it out",
        holds="what was created is found again by its name and adopted; nothing is created or counted twice",
        missing=CANARY_IN_PROCESS,
    ),
    Fault(
        number="T04",
        happens="after a restart, the VLLMService is read as it was a minute ago",
        holds="nothing is written on the old state (the precondition fails); no change goes back to an earlier state",
    ),
    Fault(
        number="T05",
        happens="watch events are lost for two minutes, in which the spec goes from A to B and back to A",
        holds="no rollout; the last generation is observed; no change is recorded",
    ),
    Fault(
        number="T06",
        happens="watch events come twice and in the wrong order",
        holds="not one API write more than without",
    ),
    Fault(
        number="T07",
        happens="the first write of every status is answered with 409",
        holds="windows, failures and changes are counted as without conflicts",
    ),
    Fault(
        number="T08",
        happens="the API server is away for ten minutes in the middle of a change",
        holds="the operator does not end; then the change goes on, and a deadline that passed meanwhile acts once",
    ),
    Fault(
        number="T09",
        happens="two operators run at once, or the one that leads is cut off",
        holds="one of them writes; never two changes at a time, never one twice",
    ),
    Fault(
        number="T10",
        happens="Prometheus answers 503 for 90 seconds during the analysis",
        holds="the candidate is not rolled back; MetricsAvailable is False; the analysis gets its time back",
    ),
    Fault(
        number="T11",
        happens="Prometheus is away for longer than the data budget",
        holds="rolled back to the last known good configuration, and the candidate is not blamed",
    ),
    Fault(
        number="T12",
        happens="every query is empty or NaN during the whole analysis, as without traffic",
        holds="inconclusive: never a success, and never taken for zero load",
    ),
    Fault(
        number="T13",
        happens="the series stand still: the exporter or its scrapes are dead, the last value lives on",
        holds="noticed by the age of the samples; the engine counts as silent",
    ),
    Fault(
        number="T14",
        happens="a query returns two series for one engine",
        holds="never added up and never picked by chance: the newest is read, what is older is left out",
    ),
    Fault(
        number="T15",
        happens="a counter is reset by a pod's restart inside the window",
        holds="growth from zero; no negative rate, no false verdict",
    ),
    Fault(
        number="T16",
        happens="one pod of several is missing from the scrape",
        holds="the missing pod is named, and its absence never turns a decision round",
    ),
    Fault(
        number="T17",
        happens="the candidate makes vLLM crash at its start",
        holds="seen by the exit code before the deadline; the old pods serve; the candidate is remembered",
        missing="canary pods on the real control plane, but with the real engine (`make e2e-vllm`)",
    ),
    Fault(
        number="T18",
        happens="the candidate needs more KV cache than fits",
        holds="as T17, in the engine's own words; no equal or larger value is tried again",
    ),
    Fault(
        number="T19",
        happens="there is no GPU for the candidate's pod",
        holds="ends at the deadline without blame for harm; the old pods serve; not tried again at once",
    ),
    Fault(
        number="T20",
        happens="the candidate is healthy first, and TTFT grows slowly after twenty minutes",
        holds="noticed in the bake; rolled back",
        missing="on the real control plane: shown in process",
    ),
    Fault(
        number="T21",
        happens="the candidate brings more tokens and misses a hard objective",
        holds="it fails: no throughput buys a missed objective",
    ),
    Fault(
        number="T22",
        happens="stable pods die during the trial, as when a node is lost",
        holds="the trial ends or waits, and the replicas come back first",
        missing="on the real control plane: shown in process",
    ),
    Fault(
        number="T23",
        happens="the service is unhealthy before the change",
        holds="no change begins on a workload that moves, lacks pods or does not serve",
    ),
    Fault(
        number="T24",
        happens="during a promotion the old version can no longer start",
        holds="what serves goes on serving; an alarm; no rollback to nothing",
        missing="on the real control plane: shown in process",
    ),
    Fault(
        number="T25",
        happens="a user edits the spec in the middle of a change",
        holds="the change is superseded, and the user gets what he wrote, without the candidate in it",
    ),
    Fault(
        number="T26",
        happens="a user deletes the VLLMService in the middle of a change",
        holds="gone within 60 s even without Prometheus; the workload stays or goes as deletionPolicy says",
    ),
    Fault(
        number="T27",
        happens="somebody pauses the service in each state of a change, perhaps with a value that nobody can read",
        holds="no progress; health is still watched and a rollback still goes on",
        missing=CANARY_IN_PROCESS,
    ),
    Fault(
        number="T28",
        happens="a person asks for a rollback while the operator waits for something",
        holds="done in the next tick, acknowledged once; the value is not tried again before he asks to retry",
    ),
    Fault(
        number="T29",
        happens="Argo CD resets our field every five seconds",
        holds="at most two applies more, then OwnershipConflict and no further write",
    ),
    Fault(
        number="T30",
        happens="somebody scales the workload from 2 to 6 during a change",
        holds="the change waits for the new pods; the verdict is about serving pods only; replicas stay the user's",
    ),
    Fault(
        number="T31",
        happens="a metric swings around its threshold with the operator's own reaction time",
        holds="at most the changes of a day; never A to B to A within the cooldown",
    ),
    Fault(
        number="T32",
        happens="the operator is restarted twenty times in an hour",
        holds="no change is caused by a restart, and none is lost",
    ),
    Fault(
        number="T33",
        happens="the clock jumps two hours ahead or back",
        holds="ahead: at most one deadline acts, and without harm; back: nothing is late, and nothing waits for ever",
    ),
    Fault(
        number="T34",
        happens="the status was written by another version, with fields unknown or missing",
        holds="read as far as it can be, or told on the object; a state is never guessed",
    ),
    Fault(
        number="T35",
        happens="the status grows with every change",
        holds="histories are cut; the whole object stays below 64 KiB",
    ),
    Fault(
        number="T36",
        happens="200 services, and Prometheus takes 2 s for a query",
        holds="a tick takes less than two intervals; one poisoned object does not hold up the others",
        missing="in seconds: the rounds of queries are counted, in process",
    ),
    Fault(
        number="T37",
        happens="a defect raises in a state of a change",
        holds="the state stays as it was, it is counted and told; others go on, and so does the change afterwards",
    ),
    Fault(
        number="T38",
        happens="a permission is taken from the operator while it runs",
        holds="told on the object; the pods serve; it goes on without a restart when the permission is back",
    ),
    Fault(
        number="T39",
        happens="each field of the spec is set to what is invalid or extreme, or is taken away",
        holds="refused at admission or told on the object; back at the former spec, the workload is the very same",
    ),
    Fault(
        number="T40",
        happens="somebody kills every candidate as soon as it is ready",
        holds="few candidates, then the circuit is open and nothing more is tried",
        missing="with canary pods: shown for a change in place",
    ),
    Fault(
        number="T41",
        happens="the operator is upgraded with services idle and in the middle of a change",
        holds="no pod template changes; a change goes on or is rolled back, and never begins anew",
        missing="on the real control plane; a canary that another version rendered is replaced by one of this version",
    ),
    Fault(
        number="T42",
        happens="the changes of one service always fail, and nine healthy ones wait for the cluster's turn",
        holds="the nine get theirs",
    ),
)
