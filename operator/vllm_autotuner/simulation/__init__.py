"""Simulation of vLLM engines without a GPU: scheduler, KV cache and metrics as in the real engine."""
