"""A diagnosis as a request, an answer, text and JSON: what every command that shows one shares."""
