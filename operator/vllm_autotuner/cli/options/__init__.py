"""Options that several commands share: one spelling, one help text."""
