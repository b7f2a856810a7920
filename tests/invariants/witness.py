"""Follows one service from moment to moment and holds each against every invariant.

The only thing here that remembers: what it remembers is a `Past`, made by `followed`.
"""

from tests.invariants.catalogue import broken
from tests.invariants.moment import Moment, Past, Seen, followed

from vllm_autotuner.api.status import StatusUnreadable, parse_status

__all__ = ["Witness"]


class Witness:
    """Sees one service after the other moment; `found` is all that was not as it must be."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._last: Seen | None = None
        self._past = Past()

    def look(self, seen: Seen) -> list[str]:
        """Return what does not hold now, and remember it."""
        if self._last is not None and _uid(self._last) != _uid(seen):
            # Deleted and made anew under its name.
            self._last, self._past = None, Past()
        readable = not self._is_news(seen) or _is_readable(seen)
        # What a person wrote is compared with nothing; what nobody can read, the operator repeats beside its condition.
        moment = Moment(before=None if seen.edited else self._last, after=seen, past=self._past)
        now = [] if seen.edited else broken(moment, of_any_status=not readable)
        if not readable and self._last is not None and not seen.edited:
            now.append("the operator wrote a status that it cannot read")
        if readable:
            self._past = followed(moment)
        self._last = seen if readable else None
        self.found += now
        return now

    def put_off(self, seen: Seen) -> list[str]:
        """Return what would not hold if nothing more happened, and remember nothing of it."""
        return broken(Moment(before=self._last, after=seen, past=self._past)) if _is_readable(seen) else []

    def _is_news(self, seen: Seen) -> bool:
        return self._last is None or self._last.status != seen.status


def _is_readable(seen: Seen) -> bool:
    try:
        parse_status(seen.status)
    except StatusUnreadable:
        return False
    return True


def _uid(seen: Seen) -> str:
    return str(seen.service["metadata"].get("uid", ""))
