"""The main scenes in any cluster, through a kubeconfig alone: `python -m e2e.cluster --kubeconfig FILE`.

Apart from the rest of e2e, which runs on the test bed's own control plane: nothing here may know that there is one.
What plays is what a user has: the built images, the chart, a Prometheus pod, pods with engines and pods with load.
Must not: import anything of e2e outside of this package (a contract in pyproject.toml says so), or touch an object that
it did not make.
"""
