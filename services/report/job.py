"""What `python -m services.report` gets on stdin.

The gateway that sends it may have been started before the installation was updated: what is added
here has a default.
"""

from typing import Any

import msgspec


class JobRun(msgspec.Struct):
    """A run, as the API shows it and what belongs to it."""

    files: str
    """The run's folder."""
    record: dict[str, Any]
    audit: dict[str, Any] | None
    dataset: dict[str, Any] | None
    workers: list[dict[str, Any]]
    recipe: dict[str, Any] | None
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the datasets that its config names, by id."""
    step: str = ""
    """Its step of the chain."""


class Job(msgspec.Struct):
    """One report."""

    folder: str
    """Where it is written; the folder above it exists."""
    runs: list[JobRun]
    version: str
    made: float
    chain: dict[str, Any] | None = None
    """None: of the one run."""
