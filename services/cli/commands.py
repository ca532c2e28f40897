"""The commands that the server adds to `headrace`, by their names in `headrace.cli.main`."""

import functools
from collections.abc import Callable
from typing import Any

import typer

from headrace.cli.output import WRONG_USAGE, CliError
from services.cli.host.backup import backup, restore
from services.cli.host.bench import bench
from services.cli.host.doctor import doctor
from services.cli.host.recover import recover
from services.cli.host.scale import scale
from services.cli.host.up import demo, up
from services.cli.models import models
from services.cli.models.export import export


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command`, with a sentence instead of a traceback for invalid settings."""

    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except ValueError as error:
            raise _of_settings(error) or error from None

    return checked


def _of_settings(error: ValueError) -> CliError | None:
    """Return the sentence for HEADRACE_* or .env that are invalid, or None for another error."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from services.settings import Settings, complaints

    if isinstance(error, SettingsError) or (
        isinstance(error, ValidationError) and error.title.endswith(Settings.__name__)
    ):
        return CliError("; ".join(complaints(error)), code=WRONG_USAGE)
    return None


OTHERS: dict[str, Callable[..., None]] = {
    "backup": backup,
    "bench": bench,
    "demo": demo,
    "doctor": doctor,
    "export": export,
    "recover": recover,
    "restore": restore,
    "scale": scale,
    "up": up,
}
COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "models": models.commands,
    **{name: _with_settings(command) for name, command in OTHERS.items()},
}
