"""`vllm-autotuner doctor`: facts about a metrics source, and the checks made on them."""
