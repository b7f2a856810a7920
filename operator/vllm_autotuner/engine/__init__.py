"""Facts about vLLM servers: flags, metric names per version, startup failures, models and GPUs. No I/O."""
