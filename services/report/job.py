"""The input of `python -m services.report`, on its stdin.

An older gateway may send it, if the installation was updated while it ran. So new fields have a
default.
"""

from typing import Any

import msgspec


class JobRun(msgspec.Struct):
    files: str
    """The run's folder."""
    record: dict[str, Any]
    dataset: dict[str, Any] | None
    workers: list[dict[str, Any]]
    recipe: dict[str, Any] | None
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Names of the datasets in its config, by id."""
    step: str = ""
    """The name of its step in the chain."""


class Job(msgspec.Struct):
    """The order of one report: its runs or its chain, and its folder."""

    page: str
    """The file to write. The folder above its folder exists."""
    runs: list[JobRun]
    """The runs of a chain, or the run and perhaps the run that it is compared with."""
    version: str
    made: float
    prices: str = ""
    """`GatewaySettings.gpu_hour_price`."""
    chain: dict[str, Any] | None = None
    """The chain, or None for a report of one run."""
