"""`vllm-autotuner simulate`: one run or a sweep, as text, JSON or pictures."""
