"""Errors of the store's own."""


class Fenced(RuntimeError):
    """Another learner has taken the run over; this one may change nothing any more."""

    def __init__(self, run: str) -> None:
        super().__init__(f"another learner has taken over run {run}")
