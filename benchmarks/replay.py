"""Recordings of a real engine against the simulated one: the same arrivals, the same scrapes, the same diagnosis.

Usage: python benchmarks/replay.py [--recordings DIR] [--json] [--plot FILE] [--save] [RECORDING...]
The work is in `benchmarks/recordings`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.recordings.command import main

    sys.exit(main())
