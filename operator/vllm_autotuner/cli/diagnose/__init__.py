"""`vllm-autotuner diagnose`, and its live view."""
