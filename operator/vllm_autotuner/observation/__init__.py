"""Observation: reads metrics from Prometheus, a recording or an engine, and builds immutable observations.

The only package that makes HTTP requests to a metrics source.
"""
