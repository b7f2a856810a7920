"""Closed-loop benchmark: the product's decisions against rivals on simulated fleets, hours of load in virtual time.

Usage: PYTHONPATH=.:operator python benchmarks/closed_loop.py [--quick] [--scenario NAME]... [--policy NAME]... --json
Every policy of a case gets the same requests, pods and noise. `--help` has examples; docs/benchmarks.md the figures.
The work is in `benchmarks/closedloop`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.closedloop.command import run_command

    run_command()
