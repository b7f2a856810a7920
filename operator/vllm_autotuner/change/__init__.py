"""One tuning change from start to end: state machine, measurement, verdict, rollback and failure memory. Pure."""
