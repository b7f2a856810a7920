"""From a diagnosis to ranked proposals, each feasible and with a predicted effect. Pure."""
