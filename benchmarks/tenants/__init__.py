"""What the operator costs by the number of its tenants and of their series."""
