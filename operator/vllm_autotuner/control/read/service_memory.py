"""What a leader keeps in memory per service between ticks. Losing it delays a diagnosis, and loses no decision."""

from collections.abc import Iterator
from datetime import datetime

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.control.decide.inputs import Refusal
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Contribution, Diagnosis, History

__all__ = ["ServiceMemory"]


class ServiceMemory:
    """By uid: the history of the diagnosis, when children were last seen to exist, and which workload was refused."""

    def __init__(self) -> None:
        self._histories: dict[str, History] = {}
        self._seen: dict[str, datetime] = {}
        self._refusals: dict[str, tuple[int, Refusal]] = {}

    def of(self, service: VLLMService) -> History:
        """The history of a service; after a restart what its status says."""
        return self._histories.get(service.metadata.uid) or _from_status(service)

    def put(self, uid: str, history: History) -> None:
        """Remember until the next tick."""
        self._histories[uid] = history

    def keep_only(self, uids: set[str]) -> None:
        """Forget what no longer exists."""
        self._histories = {uid: history for uid, history in self._histories.items() if uid in uids}
        self._seen = {uid: at for uid, at in self._seen.items() if uid in uids}
        self._refusals = {uid: found for uid, found in self._refusals.items() if uid in uids}

    def classes(self) -> Iterator[str]:
        """The class of each service."""
        return (history.named.primary.value for history in self._histories.values() if history.named is not None)

    def seen_at(self, uid: str) -> datetime | None:
        """When this leader last applied or saw the service's children that no watch covers; None if it never did."""
        return self._seen.get(uid)

    def seen(self, uid: str, *, at: datetime) -> None:
        """Note that they exist."""
        self._seen[uid] = at

    def unseen(self, uid: str) -> None:
        """Note that they have to be applied."""
        self._seen.pop(uid, None)

    def refusal(self, service: VLLMService) -> Refusal | None:
        """Why the API server refused the workload of this generation at the last apply; None when it did not."""
        generation, refusal = self._refusals.get(service.metadata.uid, (None, None))
        return refusal if generation == service.metadata.generation else None

    def refused(self, service: VLLMService, refusal: Refusal) -> None:
        """Note that the API server refused the workload."""
        self._refusals[service.metadata.uid] = (service.metadata.generation, refusal)

    def accepted(self, uid: str) -> None:
        """Note that the workload was applied."""
        self._refusals.pop(uid, None)


def _from_status(service: VLLMService) -> History:
    found = service.status.diagnosis
    if found is None or found.since is None or found.class_ not in set(DiagnosisClass):
        return History()
    named = Diagnosis(
        primary=DiagnosisClass(found.class_),
        confidence=found.confidence or Confidence.LOW,
        since=found.since.timestamp(),
        message=found.message,
        contributing=tuple(
            Contribution(diagnosis=DiagnosisClass(part.class_), message=part.message)
            for part in found.contributing
            if part.class_ in set(DiagnosisClass)
        ),
    )
    return History(named=named)
