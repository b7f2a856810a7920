"""kopf handlers, the registry and the fleet loop: the only room that knows what time it is."""
