"""Text as a cell of a Markdown table, for the pages that `make docs` writes."""


def cell(text: str) -> str:
    """In one line, with what Markdown would take for a column or a tag escaped."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
