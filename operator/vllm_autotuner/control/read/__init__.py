"""From the cluster and the metrics to the inputs of a decision. Reads only; the one place that builds `Inputs`."""
