"""A vLLM engine that needs no GPU: the scheduler, the KV pool and the metrics of the real one."""
