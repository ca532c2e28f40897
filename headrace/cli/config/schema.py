"""`headrace config schema`: the run config as JSON Schema."""

from typing import Annotated, Any

import typer

from headrace import run_schema
from headrace.cli.command import Commands
from headrace.cli.options import AsJson
from headrace.cli.output import CliError, print_json

commands = Commands(help="The run config as a document for editors and programs.")


@commands.command()
def schema(
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="rl or sft alone. Default: both."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of the run config.

    An editor with it completes the keys of a YAML file and shows their descriptions.

    Example:
    headrace config schema > headrace.schema.json
    """
    if kind is not None and kind not in run_schema.ROOTS:
        raise CliError(f"there is no type {kind!r}: it is rl or sft")
    print_json(config_schema(kind))


def config_schema(kind: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of configs of this type, by default of both."""
    described = run_schema.whole() if kind is None else run_schema.one_type(kind)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described}
