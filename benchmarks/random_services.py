"""Random services: what does the recommendation of `diagnose` do to each of them, and what did it foretell?

Usage: python benchmarks/random_services.py [--services N] [--seed FIRST] [--jobs N] [--json] [--save] [--show SEED]
The work is in `benchmarks/randomservices`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.randomservices.command import run_command

    run_command()
