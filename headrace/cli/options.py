"""Options that several commands share, and what they need before they do anything.

Nothing here, nor at the top of any command's module, imports what takes long: every command reads
all modules, to list them in `--help`. `tests/unit/cli/test_start.py` names what must wait.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Data = Annotated[Path | None, typer.Option(help="The data folder. Default: HEADRACE_DATA.")]
GatewayURL = Annotated[
    str | None,
    typer.Option(
        "--gateway", metavar="URL", help="The gateway. Default: HEADRACE_GATEWAY_URL, or this host."
    ),
]
Priority = Annotated[int, typer.Option(min=-1000, max=1000, help="Higher goes first.")]
Notes = Annotated[
    str | None, typer.Option(help="What people should know of it.", show_default=False)
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Its id, the beginning of its id, or its name.",
        autocompletion=completion.runs,
    ),
]
Dataset = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="Name or id.", autocompletion=completion.datasets),
]


def connect(url: str | None, data: Path | None = None) -> "Gateway":
    """The gateway at `url`, or the one that the settings name, asked with the API key in `data`, or
    in the folder that the settings name."""
    from headrace.cli.client import Gateway

    return Gateway(url, data=data)


def data_folder(data: Path | None) -> Path:
    """`data`, or the folder that the settings name."""
    from headrace import login
    from headrace.variables import values

    return data or login.data_folder(values())


def pool_of(pool: str | None) -> str:
    """`pool`, or the pool that HEADRACE_POOL names."""
    from headrace.variables import values

    return pool or values().get("HEADRACE_POOL") or "default"


def folder_source(data: Path | None) -> str:
    """`, which HEADRACE_DATA in … names` if a variable chose the data folder; else empty."""
    from headrace.variables import named_by

    source = named_by("data") if data is None else None
    return f", which {source} names" if source else ""


def run_and_step(model: str) -> tuple[str, int | None]:
    """The run that `model` names, and the step if it names one: RUN, RUN@latest or RUN@STEP."""
    run, _, step = model.rpartition("@")
    if run and step == "latest":
        return run, None
    return (run, int(step)) if run and step.isascii() and step.isdigit() else (model, None)
