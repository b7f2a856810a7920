"""How long a container waits before it is started again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """Nothing before the first restart, then `base` seconds, doubling up to `cap`. A kubelet has 10 and 300."""

    base: float = 10.0
    cap: float = 300.0

    def before_restart(self, failures: int) -> float:
        """Return the seconds to wait after so many ends in a row. Worked (base 1, cap 8), 1 to 6: 0, 1, 2, 4, 8, 8."""
        if failures <= 1:
            return 0.0
        # 2 ** 1000 is a number, but not a float.
        return min(self.cap, self.base * 2.0 ** min(failures - 2, 60))

    def forgives(self, ran: float) -> bool:
        """Whether a run of so many seconds was long enough to start counting anew (kubelet: twice the cap)."""
        return ran >= 2 * self.cap
