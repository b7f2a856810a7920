"""The state machine of one change, its verdict, and what is remembered of it. Pure."""
