"""The parts of every command: help that wraps and ends with examples, and `--output`.

A command's docstring is its help. The first sentence is the command's line in `headrace --help`.
The last paragraph begins with `Example:` and has one command a line.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from headrace.cli.output import Format, show_as

Function = TypeVar("Function", bound=Callable[..., Any])
Output = Annotated[
    Format | None,
    typer.Option("--output", "-o", metavar="FORMAT", help="table, json, yaml or csv."),
]
EXAMPLE = "\n\nExample:\n"
KINDS = {"integer": "a whole number", "number": "a number"}
"""Kinds of values, by pydantic's names."""
VERBATIM = "\b\n"
"""Before lines that the formatter must not join."""


class CliCommand(TyperCommand):
    """A command whose help ends with examples."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        text, _, examples = (settings.get("help") or "").partition(EXAMPLE)
        settings["help"] = text
        settings["short_help"] = first_sentence(text)
        lines = inspect.cleandoc(f"\n{examples}").splitlines()
        settings["epilog"] = f"{VERBATIM}Example:\n" + "\n".join(f"  {line}" for line in lines)
        super().__init__(*args, **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Say what a missing one is, and what an unusable value must be."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # By name: some versions of typer have their own copy of click, which is private.
            kind, param = type(error).__name__, getattr(error, "param", None)
            if kind == "MissingParameter" and getattr(param, "help", None):
                error.message = f"{param.help} `{ctx.command_path} -h` has an example."  # type: ignore[attr-defined, union-attr]
            elif kind == "BadParameter":
                error.message = plain_problem(error.message)  # type: ignore[attr-defined]
            raise


class Commands(typer.Typer):
    """Commands that are registered alike. Help is plain text of at most 80 columns."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Register a function as a command."""
        register = super().command(name, **{"cls": CliCommand, **settings})

        def registered(function: Function) -> Function:
            register(_with_output(function))
            return function

        return registered


def plain_problem(message: str) -> str:
    """Return the message about an unusable value, without pydantic's words."""
    message = message.removeprefix("Value error, ")
    for kind, words in KINDS.items():
        if message.startswith(f"Input should be a valid {kind}"):
            return f"It must be {words}."
    return message.replace("Input should be", "It must be", 1)


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text, without its period."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


def _with_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with an option `--output`, if it takes `as_json`."""
    signature = inspect.signature(function)
    if "as_json" not in signature.parameters:
        return function

    @functools.wraps(function)
    def command(*args: Any, output: Format | None, as_json: bool, **options: Any) -> Any:
        chosen = output or (Format.json if as_json else Format.table)
        show_as(chosen)
        return function(*args, as_json=chosen is not Format.table, **options)

    option = inspect.Parameter(
        "output", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Output
    )
    parameters = [*signature.parameters.values(), option]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, "output": Output}
    return command
