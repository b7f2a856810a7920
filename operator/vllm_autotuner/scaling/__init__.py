"""How many replicas the demand needs. Pure."""
