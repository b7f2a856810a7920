"""Whether a proposal may happen now: a chain of policies, each allow, hold or deny with a reason. Pure."""
