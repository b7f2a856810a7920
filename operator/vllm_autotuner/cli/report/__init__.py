"""The HTML report: page, style sheet and plots."""
