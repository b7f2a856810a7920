"""The fleet benchmark: what one operator costs with thousands of services (see `benchmarks/fleet.py`)."""
