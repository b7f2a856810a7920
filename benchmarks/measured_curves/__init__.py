"""Measured curves of real engines: read, fitted, played on the simulator, and chosen from."""
