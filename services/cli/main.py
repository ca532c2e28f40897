"""The command's root: its subcommands, and the one place where an error becomes a sentence."""

import sys
from typing import Annotated

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from services.cli import (
    audit,
    backup,
    bench,
    datasets,
    export,
    keys,
    local,
    runs,
    samples,
    scale,
    system,
    track,
    why,
)
from services.cli.output import INTERRUPTED, CliError, err, show_error
from services.settings import EXIT_SETTINGS, Settings, complaints

root = typer.Typer(
    name="headrace",
    help="Reinforcement learning of language models: submit a run, watch it, use what it made.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
local.register(root)
runs.register(root)
samples.register(root)
track.register(root)
export.register(root)
audit.register(root)
why.register(root)
scale.register(root)
root.add_typer(datasets.commands, name="datasets")
root.add_typer(keys.commands, name="keys")
backup.register(root)
system.register(root)
bench.register(root)


def main() -> None:
    """Run the command that the arguments name."""
    try:
        root()
    except CliError as error:
        show_error(error, "--json" in sys.argv)
        sys.exit(error.code)
    except (ValidationError, SettingsError) as error:
        # Of HEADRACE_* and .env; what the gateway answers is checked where it is read.
        if isinstance(error, ValidationError) and error.title != Settings.__name__:
            raise
        show_error(CliError("; ".join(complaints(error)), code=EXIT_SETTINGS), False)
        sys.exit(EXIT_SETTINGS)
    except KeyboardInterrupt:
        err.print("[dim]interrupted[/]")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has had enough. The interpreter would complain on flushing.
        sys.stderr.close()
        sys.exit(0)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@root.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Reinforcement learning of language models: submit a run, watch it, use what it made."""
