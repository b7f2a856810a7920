"""Simulated windows whose limit is known, named by the diagnosis: the confusion matrix and macro-F1.

Usage: python benchmarks/confusion.py [--seeds N] [--seed FIRST] [--json] [--save] [KIND...]
The work is in `benchmarks/windows`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.windows.command import main

    sys.exit(main())
