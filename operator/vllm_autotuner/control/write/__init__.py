"""From a decision to the API server: the status first, then Events, then the workload."""
