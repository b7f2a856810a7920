"""`vllm-autotuner record`."""
