"""Recordings of a real engine in known trouble, and how often the right class is named.

Usage: python benchmarks/scenes.py [--json] [--save] [NAME ...]
The work is in `benchmarks/truths`; this file only makes it run as a script and as a module.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]
    from benchmarks.truths.command import main

    sys.exit(main())
