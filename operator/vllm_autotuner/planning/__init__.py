"""Planning: turns a diagnosis into ranked, feasible proposals with a predicted effect. Pure functions."""
