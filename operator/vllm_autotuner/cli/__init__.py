"""The commands people type."""
