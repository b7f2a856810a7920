"""Fleets of simulated engines under hours of load in virtual time, driven by the product's decisions or by rivals."""
