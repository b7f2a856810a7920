"""What the engine would do under another setting: KV capacity, step time, knee. Pure."""
