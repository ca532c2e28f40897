"""Why a folder cannot be used as a model."""


class UnusableFolder(ValueError):
    """The message names the file, what is wrong with it and the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """`text` with escapes for what no terminal should get and no JSON can hold: names of files are
    any bytes, and libraries quote what they have read."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
