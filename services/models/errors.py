"""Why a folder cannot be used as a model."""


class UnusableFolder(ValueError):
    """The message names the file, what is wrong with it and the way out."""
