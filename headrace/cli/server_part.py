"""The part of the command that is installed with the server: `services.cli` of headrace-server."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType

from headrace.cli.output import CliError

SERVER = "headrace-server"


def has_server() -> bool:
    """Return whether the server is installed here. Its distribution is looked up, not its package:
    any project may have a package `services`."""
    try:
        distribution(SERVER)
    except PackageNotFoundError:
        return False
    return True


def server_part(module: str, what: str) -> ModuleType:
    """Return a module of `services.cli`. Raise CliError if it is not installed: `what` needs it."""
    if not has_server():
        raise needs_server(what)
    return import_module(f"services.cli.{module}")


def needs_server(what: str) -> CliError:
    """Return the error of what only works where the server is installed."""
    return CliError(f"{what} needs the server on this machine: pip install {SERVER}")
