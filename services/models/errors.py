"""The error about a folder that cannot be used as a model."""


class UnusableFolder(ValueError):
    """The message names the file, the problem and the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return `text` with escapes for characters that are unsafe in a terminal or invalid in JSON.
    File names are arbitrary bytes, and libraries quote them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
