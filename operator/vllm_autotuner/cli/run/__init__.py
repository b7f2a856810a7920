"""`vllm-autotuner run`: flags into operator settings."""
