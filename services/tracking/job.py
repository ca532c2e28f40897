"""The input of `python -m services.tracking`."""

from typing import Any

import msgspec


class TrackingJob(msgspec.Struct):
    """One run and one tracker."""

    tracker: str
    options: dict[str, Any]
    """The section of the run's config."""
    record: dict[str, Any]
    """The run's id, name, kind and config."""
    metrics: str
    """The file metrics.jsonl."""
    folder: str
    """Where the installation keeps files of trackers."""
    carried: str
    """The file that remembers what was carried."""
