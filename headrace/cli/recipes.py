"""`headrace recipes`: the run configs and the chains that come with Headrace."""

from typing import Annotated

import typer

from headrace import known_recipes
from headrace.cli import completion
from headrace.cli.options import AsJson
from headrace.cli.output import CliError, escape, out, print_json, table
from headrace.recipe import UnknownRecipe, find_in


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Print this one's YAML.", autocompletion=completion.recipes
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List recipes and chains, and when to use each.

    With NAME, print its text, to copy and change.

    Example:
    headrace recipes grpo > my.yaml
    """
    known = [*known_recipes.recipes(), *known_recipes.chains()]
    if name is not None:
        try:
            recipe = find_in(known, name)
        except UnknownRecipe as error:
            raise CliError(str(error)) from None
        if as_json:
            print_json(recipe.as_json())
        else:
            typer.echo(recipe.text, nl=False)
        return
    if as_json:
        print_json([recipe.as_json() for recipe in known])
        return
    table(
        ("NAME", "WHEN"),
        [(f"[bold]{escape(recipe.name)}[/]", escape(recipe.when)) for recipe in known],
        "no recipes",
    )
    out.print("\n[dim]headrace recipes NAME prints one; headrace submit NAME runs it[/]")
