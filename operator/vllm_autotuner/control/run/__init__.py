"""The running process: start-up, watches, the fleet loop, probes and the operator's own metrics."""
