"""The process node agent: a small kubelet that runs each container as a local process.

One concept a file: `node` (registration and heartbeats), `pods` (list and watch), `pod` (one worker for one pod),
`container` (a container over its restarts), `process` and `launch` (both sides of a fork), `probes`, `status`,
`volumes`, `environment`, `images`, `logs`, `server` (what the API server asks a kubelet), `events`, `api` (the client).
Apart from the bed, because it runs as a process of its own and a test may kill it.
Must not: be part of the product; nothing in `operator/` imports it.
Not provided: exec, attach, port-forward, cgroup limits, persistent volumes, DNS, images. `resources` and
`securityContext` are accepted and ignored.
"""
