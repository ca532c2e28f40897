"""The root of the command: its subcommands, and the conversion of errors to sentences."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from services.cli import datasets, keys, verifiers
from services.cli.agents.agents import agents
from services.cli.command import CliCommand, Commands
from services.cli.command_group import CommandGroup, RootGroup
from services.cli.config import schema
from services.cli.config.explain import explain
from services.cli.config.init import init
from services.cli.host.backup import backup, restore
from services.cli.host.bench import bench
from services.cli.host.doctor import doctor
from services.cli.host.logs import logs
from services.cli.host.recover import recover
from services.cli.host.scale import scale
from services.cli.host.up import demo, up
from services.cli.models import models
from services.cli.models.chat import chat
from services.cli.models.evaluate import compare, evaluate
from services.cli.models.evaluations import evaluations
from services.cli.models.export import export
from services.cli.models.kept import checkpoints
from services.cli.open import open_page
from services.cli.output import (
    INTERRUPTED,
    CliError,
    err,
    escape,
    is_for_programs,
    show_error,
)
from services.cli.recipes import recipes
from services.cli.runs.audit import audit
from services.cli.runs.chains import chains
from services.cli.runs.edit import set_run, tag
from services.cli.runs.metrics import metrics
from services.cli.runs.preview import preview
from services.cli.runs.report import report
from services.cli.runs.rollouts import rollouts
from services.cli.runs.runs import cancel, pause, rm, runs, watch
from services.cli.runs.samples import samples
from services.cli.runs.show import show
from services.cli.runs.submit import fork, resume, submit
from services.cli.runs.track import track
from services.cli.runs.why import why
from services.cli.workers import workers
from services.cli.wrong_options import ConfigCommand
from services.runtime.terminal import escape_output
from services.variables import places, unread

root = Commands(
    name="headrace",
    cls=RootGroup,
    help="Reinforcement learning of language models: submit a run, watch it, use what it made.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of `--help`.
GROUPS: dict[str, list[Callable[..., None]]] = {
    "Begin": [demo, up, open_page, doctor],
    "Data and config": [init, recipes, explain, preview, verifiers.score],
    "Train": [
        submit,
        runs,
        show,
        chains,
        watch,
        why,
        set_run,
        tag,
        agents,
        cancel,
        pause,
        resume,
        fork,
        rm,
    ],
    "Results": [
        metrics,
        samples,
        rollouts,
        evaluate,
        evaluations,
        compare,
        report,
        track,
        chat,
        checkpoints,
        export,
        audit,
    ],
    "Operate": [workers, scale, logs, backup, restore, recover, bench],
}
FAMILIES: dict[str, dict[str, typer.Typer]] = {
    "Data and config": {
        "models": models.commands,
        "datasets": datasets.commands,
        "verifiers": verifiers.commands,
        "config": schema.commands,
    },
    "Operate": {"keys": keys.commands},
}
"""Commands that have commands of their own."""
WITH_CONFIG = (preview, submit, resume, fork)
NAMES = {evaluate: "eval", set_run: "set", open_page: "open"}
"""Commands that have another name than their function, which would hide Python's own."""
for group, commands in GROUPS.items():
    for command in commands:
        kind = ConfigCommand if command in WITH_CONFIG else CliCommand
        root.command(NAMES.get(command), cls=kind, rich_help_panel=group)(command)
    for name, family in FAMILIES.get(group, {}).items():
        root.add_typer(family, name=name, cls=CommandGroup, rich_help_panel=group)


def main() -> None:
    """Run the command that the arguments name."""
    escape_output()
    for warning in unread(places()):
        err.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)
    try:
        root()
    except CliError as error:
        show_error(error, is_for_programs())
        sys.exit(error.code)
    except ValueError as error:
        _refuse_settings(error)
    except KeyboardInterrupt:
        err.print("[dim]interrupted[/]")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has had enough. The interpreter would complain on flushing.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        where = error.filename or "the output"
        message = f"{where} cannot be written: {error.strerror}; make room, or write elsewhere"
        show_error(CliError(message), False)
        # The rest of the output would fail again when the interpreter flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _refuse_settings(error: ValueError) -> NoReturn:
    """End the command if HEADRACE_* or .env are invalid. Raise any other error again."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from services.settings import EXIT_SETTINGS, Settings, complaints

    if isinstance(error, SettingsError) or (
        isinstance(error, ValidationError) and error.title.endswith(Settings.__name__)
    ):
        show_error(CliError("; ".join(complaints(error)), code=EXIT_SETTINGS), False)
        sys.exit(EXIT_SETTINGS)
    raise error


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
