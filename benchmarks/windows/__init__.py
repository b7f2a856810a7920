"""Simulated windows whose limit is known by construction, named by the diagnosis, and counted."""
