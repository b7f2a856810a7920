"""Prometheus (or a recording, or one engine) in, immutable observations out. The only room that speaks HTTP to them."""
