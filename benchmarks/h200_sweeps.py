"""Sweeps of a real vLLM on one H200 against the laws: half of a sweep from the other, knees, priors, KV, prompts.

Usage: python benchmarks/h200_sweeps.py [--json] [--save] [--write-tables]
The work is in `benchmarks/gpu_sweeps`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.gpu_sweeps.command import main

    sys.exit(main())
