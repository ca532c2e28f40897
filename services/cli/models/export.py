"""`headrace export`: what a run has trained, as a folder that is whole without Headrace."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.models.checkpoints import checkpoint_of, run_with_checkpoint
from services.cli.options import AsJson, Data, GatewayURL, connect
from services.cli.output import CliError, out, print_json
from services.contracts.weights import ADAPTER_CONFIG

# Of a checkpoint: what only Headrace reads.
OURS = ("training", "manifest.json")


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id, beginning of it, or name.")],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A new folder, or an empty one.")
    ],
    merged: Annotated[
        bool,
        typer.Option("--merged", help="Of a LoRA run: the whole model, the adapter added to it."),
    ] = False,
    data: Data = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Copy the newest checkpoint of RUN to FOLDER, for transformers and vLLM; of a LoRA run the
    adapter, for peft, or with --merged the whole model."""
    record = run_with_checkpoint(connect(gateway, data), run)
    checkpoint = checkpoint_of(record, data)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CliError(f"{folder} is there already and not an empty folder: name another one")
    adapter = (checkpoint / ADAPTER_CONFIG).is_file() and not merged
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"{folder} cannot be made: {error.strerror}") from None
    try:
        if merged and (checkpoint / ADAPTER_CONFIG).is_file():
            _merge(checkpoint, beside)
        else:
            # Not its modes: earlier versions made checkpoints for their own user alone.
            shutil.copytree(
                checkpoint,
                beside,
                ignore=shutil.ignore_patterns(*OURS),
                copy_function=shutil.copyfile,
            )
        beside.rename(folder)
    except (OSError, shutil.Error) as error:
        raise CliError(
            f"{checkpoint} could not be copied to {folder}: {error}; if the run goes on, and has "
            "made a newer checkpoint meanwhile, try again"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    kind = "adapter" if adapter else "model"
    if as_json:
        print_json({"run": record["id"], "folder": str(folder), "kind": kind})
        return
    out.print(f"[green]exported[/] {checkpoint.name} of {record['name']}: {kind} in {folder}")


def _merge(checkpoint: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "learner.tools.export", "--", str(checkpoint), str(folder)]
    if (code := subprocess.run(command, check=False).returncode) != 0:
        raise CliError("the adapter was not merged; nothing was written", code=code)
