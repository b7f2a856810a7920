"""A clock that only the test moves."""

from datetime import UTC, datetime, timedelta


class Clock:
    """Seconds on a monotonic scale, and a wall clock that may be wrong by `skew` seconds."""

    def __init__(self, *, skew: float = 0.0) -> None:
        self.now = 1000.0
        self.skew = skew

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> datetime:
        return datetime(2026, 11, 20, tzinfo=UTC) + timedelta(seconds=self.now + self.skew)

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0, "a sleep of nothing is a busy loop"
        self.now += seconds
