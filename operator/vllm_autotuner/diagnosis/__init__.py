"""Diagnosis: names the bottleneck of an observed service, with its evidence. Pure functions, no I/O."""
