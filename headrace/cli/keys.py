"""`headrace keys …`: API keys besides the installation's first, and links to log in with."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from headrace.cli.command import Commands
from headrace.cli.options import AsJson, GatewayURL, connect
from headrace.cli.output import ago, escape, out, print_json, table

commands = Commands(help="Make, list and revoke API keys.")


class Surface(StrEnum):
    """The part of the API that a key reaches."""

    ALL = "all"
    OPENAI = "openai"


class Role(StrEnum):
    """The rights of a key."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"


@commands.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what will use it.")],
    role: Annotated[
        Role,
        typer.Option(
            help="read: sees everything. submit: also submits, changes and deletes. admin: also "
            "manages keys, and serves workers."
        ),
    ] = Role.ADMIN,
    surface: Annotated[
        Surface,
        typer.Option(help="openai: only OpenAI's fine-tuning API, and asking models."),
    ] = Surface.ALL,
    project: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only this project's files, jobs and fine-tuned models. Needs --surface openai.",
        ),
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Make a key, and print it this once.

    Example:
    headrace keys add alice --role read
    headrace keys add tuning --role submit --surface openai --project support
    """
    limits = {"role": role.value, "surface": surface.value, "project": project}
    made = connect(gateway).post("/v1/keys", json={"name": name, **limits})
    if as_json:
        print_json(made)
        return
    out.print(made["key"], markup=False, soft_wrap=True)


@commands.command()
def link(gateway: GatewayURL = None) -> None:
    """Print a link that opens the page, logged in.

    It works once, for an hour.

    Example:
    headrace keys link
    """
    out.print(connect(gateway).login_link(), markup=False, soft_wrap=True)


@commands.command("list")
def list_all(as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """List all keys but the first, oldest first.

    Example:
    headrace keys list
    """
    keys = list(connect(gateway).pages("/v1/keys", "keys"))
    if as_json:
        print_json(keys)
        return
    table(
        ("ID", "NAME", "ROLE", "REACHES", "MADE"),
        [
            (key["id"], escape(key["name"]), key["role"], _reach(key), ago(key["created"]))
            for key in keys
        ],
        "no keys but the first",
    )


def _reach(key: dict[str, Any]) -> str:
    project = key["project"]
    return key["surface"] if project is None else f"{key['surface']}, project {escape(project)}"


@commands.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `headrace keys list` shows it.")],
    gateway: GatewayURL = None,
) -> None:
    """Refuse a key from now on.

    Example:
    headrace keys revoke ID
    """
    connect(gateway).delete(f"/v1/keys/{id}")
    out.print(f"revoked {escape(id)}")
