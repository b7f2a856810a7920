"""What a vLLM server is: its flags, metric names per version and start-up failures. No I/O."""
