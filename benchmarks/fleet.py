"""What one operator costs beside a fleet of services, on a real control plane.

Usage: python benchmarks/fleet.py [--services N ...] [--engines-per-service R ...] [--minutes M] [--json] [--save]
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from benchmarks.fleets.command import main

if __name__ == "__main__":
    sys.exit(main())
