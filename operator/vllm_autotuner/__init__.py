"""Tune vLLM deployments on Kubernetes: name the bottleneck, change one thing, measure, keep or undo."""
