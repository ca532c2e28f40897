"""The root of the command: its subcommands, and the conversion of errors to sentences."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from headrace.cli import datasets, keys, verifiers
from headrace.cli.agents.agents import agents
from headrace.cli.command import CliCommand, Commands
from headrace.cli.command_group import CommandGroup, RootGroup
from headrace.cli.config import schema
from headrace.cli.config.explain import explain
from headrace.cli.config.init import init
from headrace.cli.models.chat import chat
from headrace.cli.models.evaluate import compare, evaluate
from headrace.cli.models.evaluations import evaluations
from headrace.cli.models.kept import checkpoints
from headrace.cli.open import open_page
from headrace.cli.output import (
    INTERRUPTED,
    CliError,
    err,
    escape,
    is_for_programs,
    show_error,
)
from headrace.cli.recipes import recipes
from headrace.cli.runs.audit import audit
from headrace.cli.runs.chains import chains
from headrace.cli.runs.edit import set_run, tag
from headrace.cli.runs.logs import logs
from headrace.cli.runs.metrics import metrics
from headrace.cli.runs.preview import preview
from headrace.cli.runs.report import report
from headrace.cli.runs.rollouts import rollouts
from headrace.cli.runs.runs import cancel, pause, rm, runs, watch
from headrace.cli.runs.samples import samples
from headrace.cli.runs.show import show
from headrace.cli.runs.submit import fork, resume, submit
from headrace.cli.runs.track import track
from headrace.cli.runs.why import why
from headrace.cli.server_part import has_server, server_part
from headrace.cli.workers import workers
from headrace.cli.wrong_options import ConfigCommand
from headrace.terminal import escape_output
from headrace.variables import places, unread

root = Commands(
    name="headrace",
    cls=RootGroup,
    help="Reinforcement learning of language models: submit a run, watch it, use what it made.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
OF_SERVER = None
"""Stands for a command of `services.cli.commands`, which is there if the server is installed."""
GROUPS: dict[str, dict[str, Callable[..., None] | typer.Typer | None]] = {
    "Begin": {"demo": OF_SERVER, "up": OF_SERVER, "open": open_page, "doctor": OF_SERVER},
    "Data and config": {
        "init": init,
        "recipes": recipes,
        "explain": explain,
        "preview": preview,
        "score": verifiers.score,
        "models": OF_SERVER,
        "datasets": datasets.commands,
        "verifiers": verifiers.commands,
        "config": schema.commands,
    },
    "Train": {
        "submit": submit,
        "runs": runs,
        "show": show,
        "chains": chains,
        "watch": watch,
        "why": why,
        "set": set_run,
        "tag": tag,
        "agents": agents,
        "cancel": cancel,
        "pause": pause,
        "resume": resume,
        "fork": fork,
        "rm": rm,
    },
    "Results": {
        "metrics": metrics,
        "samples": samples,
        "rollouts": rollouts,
        "eval": evaluate,
        "evaluations": evaluations,
        "compare": compare,
        "report": report,
        "track": track,
        "chat": chat,
        "checkpoints": checkpoints,
        "export": OF_SERVER,
        "audit": audit,
    },
    "Operate": {
        "workers": workers,
        "scale": OF_SERVER,
        "logs": logs,
        "backup": OF_SERVER,
        "restore": OF_SERVER,
        "recover": OF_SERVER,
        "bench": OF_SERVER,
        "keys": keys.commands,
    },
}
"""The commands in the order of `--help`. A Typer is a command that has commands of its own."""


WITH_CONFIG = (preview, submit, resume, fork)


def _register() -> None:
    of_server = server_part("commands", "headrace").COMMANDS if has_server() else {}
    for group, commands in GROUPS.items():
        for name, known in commands.items():
            command = of_server.get(name) if known is OF_SERVER else known
            if isinstance(command, typer.Typer):
                root.add_typer(command, name=name, cls=CommandGroup, rich_help_panel=group)
            elif command is not None:
                kind = ConfigCommand if command in WITH_CONFIG else CliCommand
                root.command(name, cls=kind, rich_help_panel=group)(command)
            else:
                RootGroup.of_server.append(name)


_register()


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
