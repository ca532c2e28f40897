"""`headrace workers` and `headrace recipes`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from recipes import UnknownRecipe, find_recipe, list_recipes
from services.cli.client import Gateway, GatewayURL
from services.cli.output import AsJson, CliError, ago, out, print_json, table, worker_state


def register(root: typer.Typer) -> None:
    """Add these commands to the root."""
    for command in (workers, recipes):
        root.command()(command)


def workers(as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Rollout workers and what they do."""
    records = Gateway(gateway).get("/v1/workers")["workers"]
    if as_json:
        print_json(records)
        return
    table(
        ("ID", "HOST", "POOL", "STATE", "RUN", "VERSION", "IN FLIGHT", "TOKENS/S", "SEEN", "ERROR"),
        [
            (
                escape(record["id"]),
                escape(record["host"]),
                record["pool"],
                worker_state(record["state"]),
                record["run"] or "",
                "" if record["version"] is None else str(record["version"]),
                str(record["groups_in_flight"]),
                f"{record['tokens_per_second']:,.0f}",
                ago(record["heartbeat"]),
                escape(record["error"]),
            )
            for record in records
        ],
        "no workers: `headrace up` starts one; more with `python -m rollout`",
    )


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print this one's YAML.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recipes and when to use each; with NAME, its text to copy and change."""
    if name is not None:
        try:
            recipe = find_recipe(name)
        except UnknownRecipe as error:
            raise CliError(str(error)) from None
        if as_json:
            print_json(asdict(recipe))
        else:
            typer.echo(recipe.text, nl=False)
        return
    found = list_recipes()
    if as_json:
        print_json([asdict(recipe) for recipe in found])
        return
    table(
        ("NAME", "WHEN"),
        [(f"[bold]{escape(recipe.name)}[/]", escape(recipe.when)) for recipe in found],
        "no recipes",
    )
    out.print("\n[dim]headrace recipes NAME prints one; headrace submit NAME runs it[/]")
