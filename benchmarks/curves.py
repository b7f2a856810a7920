"""Measured curves against the models: fit, play on the simulator, compare, choose.

Usage: python benchmarks/curves.py --curves DIR [--json] [--plot FILE] [--write-profiles DIR]
DIR holds CSV files with one measured curve each; any models, GPUs and number of points.
The work is in `benchmarks/measured_curves`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.measured_curves.command import main

    sys.exit(main())
