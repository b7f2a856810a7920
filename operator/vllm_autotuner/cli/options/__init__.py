"""Options that several commands share: each is defined once, in a group that a command takes as one value."""
