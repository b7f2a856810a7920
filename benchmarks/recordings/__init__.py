"""Recordings of real engines: read, their workload reconstructed, replayed on the simulated engine, and compared."""
