"""Random services, the recommendation for each, and what comes of it. `benchmarks/random_services.py` runs this."""
