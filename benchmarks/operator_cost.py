"""The operator's memory and CPU time by tenants and their series, on a real control plane.

Usage: python benchmarks/operator_cost.py [--tenants N ...] [--series N ...] [--save]
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from benchmarks.tenants.command import main

if __name__ == "__main__":
    sys.exit(main())
