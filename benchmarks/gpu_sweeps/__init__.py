"""Sweeps of a real vLLM on a GPU of our own: as curve files, and against what the product says before and after."""
