"""What became of every request of a run, and what was asked for. Written by the fleet, read by the scoring.

Must not: judge; whether a latency is good is the scenario's.
"""

from typing import Final

import numpy as np

from vllm_autotuner.simulation.sequence import Outcome

__all__ = ["FAILED", "PENDING", "SERVED", "Ledger"]

PENDING: Final = 0
SERVED: Final = 1
FAILED: Final = 2


class Ledger:
    """Arrays by request number: fate, TTFT and TPOT (seconds, NaN where there is none)."""

    def __init__(self, requests: int) -> None:
        self.fate = np.zeros(requests, dtype=np.int8)
        self.ttft = np.full(requests, np.nan)
        self.tpot = np.full(requests, np.nan)
        self.pods_started = 0
        self.rollouts = 0
        """Times that other arguments or another image were applied: each restarts every replica."""
        self.scalings: list[tuple[float, int]] = []
        """(time, replicas) of each change of the number asked for."""
        self.seats: list[tuple[float, int | None]] = []
        """(time, max-num-seqs) of each configuration applied."""

    def served(self, index: int, outcome: Outcome) -> None:
        """The request ran to its end."""
        self._close(index, SERVED)
        self.ttft[index], self.tpot[index] = outcome.ttft, outcome.tpot

    def failed(self, index: int) -> None:
        """It was refused, given up, or lost with its pod."""
        self._close(index, FAILED)

    def _close(self, index: int, fate: int) -> None:
        if self.fate[index] != PENDING:
            raise AssertionError(f"request {index} ended twice")
        self.fate[index] = fate
