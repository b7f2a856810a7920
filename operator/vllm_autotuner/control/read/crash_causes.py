"""Why engines ended, from the logs of their last attempts: looked up for the whole fleet at once, before the decisions.

Apart from `pod_state`, which says what a pod does now: a log does not change any more once its container has ended, so
it is read once for each end, and what could not be read in one tick is read in a later one.
Must not: guess. A failure that neither the pod's status nor its log explains is `Unknown`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from vllm_autotuner.control.read.pod_logs import PodLogs
from vllm_autotuner.control.read.views import PodView
from vllm_autotuner.engine.startup_log import StartupFailure, StartupReason, parse_startup_failure

__all__ = ["CrashCauses", "has_crashed", "how_it_ended", "lacked_host_memory"]

CRASH_LOG_BYTES: Final = 64 * 1024
"""The root cause of a failed start was seen up to 7.2 KiB before the end of the log, with one worker. Each further
worker prints its own traceback: room for eight."""
OUT_OF_MEMORY: Final = "OOMKilled"
"""The termination reason of a container that went over its memory limit: host memory, not the GPU's."""

_End: TypeAlias = tuple[str, str, str, int]
"""Namespace, name and uid of a pod, and how often its container has ended."""


class CrashCauses:
    """What the logs say about the ends of containers."""

    def __init__(self, logs: PodLogs) -> None:
        self._logs = logs
        self._known: dict[_End, StartupFailure | None] = {}
        """None: the log was read and does not say why."""
        self._kept: dict[_End, StartupFailure | None] = {}
        """The same of the part that the kubelet keeps, for a log that could not be read."""

    async def look(self, services: Iterable[Sequence[PodView]]) -> None:
        """Read the logs that say why the pods of these services crashed, as far as this tick has time for it.

        One pod of each configuration is asked: pods of one template fail alike.
        """
        crashed = [pod for pods in services for pod in _examples(pods)]
        ends = {_end(pod) for pod in crashed}
        self._known = {end: cause for end, cause in self._known.items() if end in ends}
        self._kept = {end: cause for end, cause in self._kept.items() if end in ends}
        await self._logs.within_budget(self._read(pod) for pod in crashed if _end(pod) not in self._known)

    def of(self, pod: PodView) -> StartupFailure:
        """Why the engine of a crashed pod ended; from the pod's status where its log could not be read."""
        end = _end(pod)
        if (known := self._known.get(end)) is not None:
            return known
        if lacked_host_memory(pod):
            message = "the container exceeded its memory limit (host memory, not GPU memory)"
            return StartupFailure(reason=StartupReason.OUT_OF_MEMORY, message=message)
        # The part of the log that the kubelet keeps is short, but better than an exit code; a whole log includes it.
        if end not in self._known and (failure := self._in_what_is_kept(pod)) is not None:
            return failure
        return StartupFailure(reason=StartupReason.UNKNOWN, message=how_it_ended(pod))

    def _in_what_is_kept(self, pod: PodView) -> StartupFailure | None:
        if (end := _end(pod)) not in self._kept:
            ended = pod.last_termination
            self._kept[end] = None if ended is None else parse_startup_failure(ended.message)
        return self._kept[end]

    async def _read(self, pod: PodView) -> None:
        for previous in (True, False):
            text = await self._logs.text(pod, previous=previous, tail_bytes=CRASH_LOG_BYTES)
            if text:
                self._known[_end(pod)] = failure = parse_startup_failure(text)
                if failure is not None:
                    return


def has_crashed(pod: PodView) -> bool:
    """Whether its engine ended at least once and has not come back since."""
    return not pod.ready and pod.last_termination is not None and pod.restarts > 0


def how_it_ended(pod: PodView) -> str:
    """The last exit of the engine as the kubelet reports it; empty when it has not exited yet."""
    ended = pod.last_termination
    if pod.restarts == 0 or ended is None:
        return ""
    code = "unknown" if ended.exit_code is None else str(ended.exit_code)
    return f"{pod.name} terminated with exit code {code} ({pod.restarts} restart(s))"


def lacked_host_memory(pod: PodView) -> bool:
    """Whether its engine was ended for going over the memory limit of its container."""
    return pod.last_termination is not None and pod.last_termination.reason == OUT_OF_MEMORY


def _examples(pods: Sequence[PodView]) -> Iterator[PodView]:
    """The first crashed pod of each configuration, as `pod_state` asks about it."""
    seen = set()
    for pod in pods:
        if has_crashed(pod) and not pod.deleting and (configuration := (pod.track, pod.config_hash)) not in seen:
            seen.add(configuration)
            yield pod


def _end(pod: PodView) -> _End:
    return pod.namespace, pod.name, pod.uid, pod.restarts
