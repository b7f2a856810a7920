"""Performance models of an engine: KV capacity, step time and the TPOT knee at other settings. Pure."""
