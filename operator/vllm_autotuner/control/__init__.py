"""The operator's control loop: read, decide, write, and the process that runs it. Only here clocks are read."""
