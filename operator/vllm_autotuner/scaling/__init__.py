"""Scaling: the number of replicas that the demand needs. Pure functions."""
