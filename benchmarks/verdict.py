"""Error rates of the verdict on a change: wrong rejections, harmful promotions, and the curve over effect sizes.

Usage: python benchmarks/verdict.py [--quick] [--cases N] [--trials N] [--seed N] [--jobs N] [--in-place | --routers]
                                    [--save] [--output DIR]
The work is in `benchmarks/verdicts`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.verdicts.command import run_command

    run_command()
