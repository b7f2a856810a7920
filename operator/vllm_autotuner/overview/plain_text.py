"""Text of others made harmless to show: in terminals here, in HTML by `html_text`, which builds on it.

Apart from the console, because pages need it without one.
"""

__all__ = ["printable"]


def printable(text: str) -> str:
    """Replace control characters, which a terminal would execute instead of show."""
    return "".join(character if character.isprintable() else " " for character in text)
