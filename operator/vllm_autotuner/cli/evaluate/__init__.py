"""From a metrics source to evaluations of services: what `diagnose`, `backtest`, `explain` and `simulate` share."""
