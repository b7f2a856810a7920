"""From an observation to one named bottleneck with its evidence. Pure."""
