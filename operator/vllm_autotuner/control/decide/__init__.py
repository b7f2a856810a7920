"""What one tick decides for one service. Pure: no I/O, no clock; inputs in, the next status out."""
