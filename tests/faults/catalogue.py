"""The fault tests, T01 and on: the fault, what must hold, and what the tests do not cover yet, with the reason.

Apart from the tests, which carry the numbers (`@pytest.mark.fault("T17")`), so that a number without a test is listed
as well. `docs/fault-tests.md` and `make faults` combine this catalogue with the marks.
Must not: state that a row is covered. Only a test that ran shows that.
"""

from dataclasses import dataclass
from typing import Final

CANARY_IN_PROCESS: Final = (
    "canary pods on the real control plane: covered there for in-place changes, for canaries in process"
)

EACH_WRITE: Final = (
    "one run per write on the real control plane: `make crash-points` has them, here one run crashes at each step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row."""

    number: str
    happens: str
    holds: str
    missing: str = ""
    """What the tests do not cover of `holds`, with the reason."""
    untested: str = ""
    """Why the row has no test. A row with neither tests nor this reason fails."""


FAULTS: Final = (
    Fault(
        number="T01",
        happens="the operator is killed after each API write of a beneficial change, and before each response arrives",
        holds="the outcome equals an undisturbed run: one change in the history, the same number of rollouts, one "
        "Event of each kind",
        missing="the counter of changes, which restarts at zero in a new process: history and Events are compared "
        f"instead; {EACH_WRITE}; {CANARY_IN_PROCESS}",
    ),
    Fault(
        number="T02",
        happens="the operator is killed during the rollback of a change that is harmful or does not start",
        holds="the last known good configuration serves; one rollback in the history, one Event, no duplicate "
        "resources",
        missing=f"{EACH_WRITE}; {CANARY_IN_PROCESS}",
    ),
    Fault(
        number="T03",
        happens="the response to a write is lost after the API server has applied it",
        holds="the created object is found by its name and adopted; nothing is created or counted twice",
        missing=CANARY_IN_PROCESS,
    ),
    Fault(
        number="T04",
        happens="after a restart, the operator reads a version of the VLLMService that is one minute old",
        holds="writes based on the old version are refused (precondition); no change returns to an earlier state",
    ),
    Fault(
        number="T05",
        happens="watch events are lost for two minutes, during which the spec goes from A to B and back to A",
        holds="no rollout; the latest generation is observed; no change is recorded",
    ),
    Fault(
        number="T06",
        happens="watch events are duplicated and out of order",
        holds="no additional API write",
    ),
    Fault(
        number="T07",
        happens="the first write of every status fails with 409",
        holds="windows, failures and changes are counted as without conflicts",
    ),
    Fault(
        number="T08",
        happens="the API server is unavailable for ten minutes during a change",
        holds="the operator keeps running; afterwards the change continues, and an expired deadline takes effect once",
    ),
    Fault(
        number="T09",
        happens="two operators run at the same time, or the leader is cut off",
        holds="only one of them writes; changes never overlap and are never repeated",
    ),
    Fault(
        number="T10",
        happens="Prometheus returns 503 for 90 seconds during the analysis",
        holds="the candidate is not rolled back; MetricsAvailable is False; the analysis is extended by the time lost",
    ),
    Fault(
        number="T11",
        happens="Prometheus is unavailable for longer than the data budget",
        holds="rollback to the last known good configuration; the candidate is not recorded as failed",
    ),
    Fault(
        number="T12",
        happens="every query returns nothing or NaN during the whole analysis, as without traffic",
        holds="the verdict is inconclusive: never a success, and missing data never counts as zero load",
    ),
    Fault(
        number="T13",
        happens="the series stop changing: the exporter or its scrapes are dead and the last value remains",
        holds="the age of the samples reveals it; the engine counts as stale",
    ),
    Fault(
        number="T14",
        happens="a query returns two series for one engine",
        holds="they are neither added nor chosen at random: the newest is read, older ones are ignored",
    ),
    Fault(
        number="T15",
        happens="a pod restart resets a counter inside the window",
        holds="the increase is counted from zero; no negative rate, no wrong verdict",
    ),
    Fault(
        number="T16",
        happens="one of several pods is missing from the scrape",
        holds="the missing pod is named, and its absence never reverses a decision",
    ),
    Fault(
        number="T17",
        happens="vLLM crashes at startup with the candidate",
        holds="the exit code reveals it before the deadline; the old pods serve; the candidate is recorded as failed",
        missing="canary pods on the real control plane; covered with the real engine (`make e2e-vllm`)",
    ),
    Fault(
        number="T18",
        happens="the candidate needs more KV cache than fits",
        holds="as T17, with the engine's own message; no equal or larger value is tried again",
    ),
    Fault(
        number="T19",
        happens="no GPU is free for the candidate's pod",
        holds="the change ends at its deadline and is not recorded as harmful; the old pods serve; no immediate retry",
    ),
    Fault(
        number="T20",
        happens="the candidate is healthy at first, and TTFT rises slowly after twenty minutes",
        holds="the bake detects it; rollback",
        missing="the real control plane: covered in process",
    ),
    Fault(
        number="T21",
        happens="the candidate raises throughput and misses a hard objective",
        holds="the candidate fails: throughput never outweighs a missed objective",
    ),
    Fault(
        number="T22",
        happens="stable pods die during the trial, for example with their node",
        holds="the trial ends or waits, and the replicas are restored first",
        missing="the real control plane: covered in process",
    ),
    Fault(
        number="T23",
        happens="the service is unhealthy before the change",
        holds="no change begins while the workload rolls out, lacks pods or does not serve",
    ),
    Fault(
        number="T24",
        happens="the old version can no longer start during a promotion",
        holds="the serving pods keep serving; the failure is reported; no rollback to a version that does not start",
        missing="the real control plane: covered in process",
    ),
    Fault(
        number="T25",
        happens="a user edits the spec during a change",
        holds="the change is superseded; the edited spec applies, without the candidate's value",
    ),
    Fault(
        number="T26",
        happens="a user deletes the VLLMService during a change",
        holds="it is gone within 60 s even without Prometheus; the workload is kept or deleted as deletionPolicy "
        "requires",
    ),
    Fault(
        number="T27",
        happens="a user pauses the service in each state of a change, including with an unreadable value",
        holds="no progress; health is still watched and a rollback continues",
        missing=CANARY_IN_PROCESS,
    ),
    Fault(
        number="T28",
        happens="a user requests a rollback while the operator waits",
        holds="done in the next tick, acknowledged once; the value is not tried again until the user allows a retry",
    ),
    Fault(
        number="T29",
        happens="Argo CD resets an operator-owned field every five seconds",
        holds="at most two further applies, then OwnershipConflict and no further write",
    ),
    Fault(
        number="T30",
        happens="a user scales the workload from 2 to 6 during a change",
        holds="the change waits for the new pods; the verdict uses serving pods only; the user's number of "
        "replicas stays",
    ),
    Fault(
        number="T31",
        happens="a metric oscillates around its threshold in step with the operator's reactions",
        holds="changes stay within the daily budget; never A to B to A within the cooldown",
    ),
    Fault(
        number="T32",
        happens="the operator restarts twenty times in an hour",
        holds="no restart causes a change, and none loses one",
    ),
    Fault(
        number="T33",
        happens="the clock jumps two hours forward or back",
        holds="forward: at most one deadline takes effect, without harm; back: no deadline expires, and nothing "
        "waits forever",
    ),
    Fault(
        number="T34",
        happens="another version wrote the status, with unknown or missing fields",
        holds="the readable part is used, or the object reports the problem; a state is never guessed",
    ),
    Fault(
        number="T35",
        happens="the status grows with every change",
        holds="histories are truncated; the whole object stays below 64 KiB",
    ),
    Fault(
        number="T36",
        happens="200 services, and Prometheus takes 2 s per query",
        holds="a tick takes less than two intervals; one malformed object does not delay the others",
        missing="seconds: the rounds of queries are counted, in process",
    ),
    Fault(
        number="T37",
        happens="a defect raises an exception in one state of a change",
        holds="the state is unchanged, and the error is counted and reported; other services continue, and so does "
        "the change once the defect is fixed",
    ),
    Fault(
        number="T38",
        happens="a permission of the operator is revoked while it runs",
        holds="the object reports it; the pods serve; the operator continues without a restart once the permission "
        "is back",
    ),
    Fault(
        number="T39",
        happens="each field of the spec is set to an invalid or extreme value, or is removed",
        holds="refused at admission or reported on the object; with the former spec restored, the workload is "
        "identical",
    ),
    Fault(
        number="T40",
        happens="every candidate is killed as soon as it is ready",
        holds="few candidates, then the circuit breaker opens and no further candidate is tried",
        missing="canary pods: covered for in-place changes",
    ),
    Fault(
        number="T41",
        happens="the operator is upgraded with idle services and during a change",
        holds="no pod template changes; a change continues or is rolled back, and never restarts",
        missing="the real control plane; a canary rendered by another version is replaced by one of this version",
    ),
    Fault(
        number="T42",
        happens="the changes of one service always fail while nine healthy services wait for their turn",
        holds="each of the nine gets its turn",
    ),
    Fault(
        number="T43",
        happens="a list in the status outgrows its limit in the CRD, for example because many Events wait",
        holds="it is cut before it is sent: the API server refuses no status, and later decisions are written",
    ),
    Fault(
        number="T44",
        happens="another field manager overwrites the Deployment during a change: on-call scales three times or undoes "
        "the rollout, or a tool insists on an image",
        holds="only the contested field is given up; the value under test is not written again and does not stay: "
        "the configuration before the change is restored",
    ),
    Fault(
        number="T45",
        happens="one child object is refused during a rollback: a Service by a permission, a quota or a webhook, or "
        "the deletion of a canary",
        holds="the Deployment is rolled back nevertheless; the object reports the refusal",
    ),
    Fault(
        number="T46",
        happens="a user deletes the Service of a VLLMService",
        holds="it is created again within minutes; a Service that exists is only read",
    ),
    Fault(
        number="T47",
        happens="the nodes of twelve services' crashed pods are gone: no kubelet answers a request for a log",
        holds="logs cost a tick a bounded time, no node is asked twice in a row, and no rollback waits for a log",
        missing="a real kubelet that hangs: the time-outs are played in process",
    ),
    Fault(
        number="T48",
        happens="no operator runs for minutes or days during a bake, and the value under test does harm meanwhile",
        holds="time that no operator watched does not count: the bake goes on where it was left, and the harm is found",
    ),
    Fault(
        number="T49",
        happens="engines end once and come back, with the old configuration as with the new one: a sidecar that is "
        "late, a node that restarts",
        holds="the value is not blamed: an unexplained end counts with the second one, and none while the baseline or "
        "the old pods end as well",
        missing="the real control plane: covered in process",
    ),
    Fault(
        number="T50",
        happens="an autoscaler of the VLLMService writes spec.replicas, which raises the generation: after an upgrade "
        "of the operator, a failed rollback, a conflict",
        holds="only the number of pods changes: no pod is rolled, nothing that needs a person is cleared, a change "
        "goes on",
    ),
    Fault(
        number="T51",
        happens="the intent of a rollback is written, and the operator is down until after its deadline",
        holds="the rollback is tried, for as long as it may take; one that is refused all that time fails",
    ),
    Fault(
        number="T52",
        happens="an old leader wakes up between its look at a child and its write, and a later leader has written it "
        "meanwhile",
        holds="the write is refused by its precondition: uid and resourceVersion of what was read",
    ),
    Fault(
        number="T53",
        happens="a proxy before the API server answers a write with Retry-After: 86400",
        holds="writes pause for 30 s at most: a rollback does not wait for a day",
    ),
    Fault(
        number="T54",
        happens="a node drain replaces the pod of a canary or baseline while a change is measured",
        holds="the new pod warms up before it is measured; the analysis keeps its windows and its remaining time",
    ),
    Fault(
        number="T55",
        happens="a user deletes a VLLMService during a change in place; its Deployment is retained",
        holds="an Event names the value under test that stays, and the command that restores the old one",
        missing="a deletion while no operator runs: nothing can tell of it then",
    ),
    Fault(
        number="T56",
        happens="the API server answers every write for two objects with 500, and those of others are executed: a "
        "webhook that does not answer; objects as large as etcd allows",
        holds="after 5 minutes it counts as theirs: their own changes wait, and those of all others begin; an object "
        "that is too large is told so at once, by an Event",
    ),
    Fault(
        number="T57",
        happens="objects are found as an older version wrote them: lists longer than their limits, fields that are "
        "gone, fields that were not yet there",
        holds="they are read; lists are cut to their newest entries with the first write; what is left out is logged; "
        "a change in progress comes to its end",
    ),
)
