"""Closed-loop benchmark: the product's decisions against rivals on simulated fleets, hours of load in virtual time.

Usage: python benchmarks/closed_loop.py [--quick] [--scenario NAME]... [--policy NAME]... [--seed N] ...
Every policy of a run gets the same requests. Figures go to benchmarks/results/closed_loop.json, pictures beside it.
The work is in `benchmarks/closedloop`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.closedloop.command import run_command

    run_command()
