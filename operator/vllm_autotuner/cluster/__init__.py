"""The Kubernetes API, and nothing else: server-side apply, status, Events, Lease, logs."""
