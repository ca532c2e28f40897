"""`headrace export`: what a run has trained, as a folder that is whole without Headrace."""

import os
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AsJson, Data, GatewayURL, connect, run_and_step
from headrace.cli.output import CliError, err, escape, out, print_json
from headrace.cli.runs.chains import run_of
from services.cli.models.checkpoints import checkpoint_of, run_with_step
from services.cli.models.learner_tools import run_tool
from services.contracts.weights import ADAPTER_CONFIG

OURS = ("training", "manifest.json")
"""Parts of a checkpoint that only Headrace reads."""


class WeightType(StrEnum):
    """Types that transformers and vLLM read weights in."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Id, beginning of it, or name; RUN@STEP is the checkpoint of an earlier step.",
        ),
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A new folder, or an empty one.")
    ],
    merged: Annotated[
        bool,
        typer.Option("--merged", help="Of a LoRA run: the whole model, the adapter added to it."),
    ] = False,
    dtype: Annotated[
        WeightType | None,
        typer.Option("--dtype", help="Round the weights to this type, and say what that loses."),
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Copy a checkpoint of RUN to FOLDER, for transformers and vLLM.

    RUN is its newest checkpoint, RUN@STEP that of a step. A LoRA run gives the adapter, for peft,
    or with --merged the whole model.

    Example:
    headrace export RUN my-model
    """
    api = connect(gateway, data)
    reference, step = run_and_step(run)
    record = run_with_step(api, run_of(api, reference), step)
    checkpoint = checkpoint_of(record, data, step)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CliError(f"{folder} is there already and not an empty folder: name another one")
    has_adapter = (checkpoint / ADAPTER_CONFIG).is_file()
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"{folder} cannot be made: {error.strerror}") from None
    lost = ""
    try:
        if merged and has_adapter:
            wanted = () if dtype is None else (f"--dtype={dtype.value}",)
            lost = _in_learner("export", *wanted, "--", str(checkpoint), str(beside))
        else:
            _copy(checkpoint, beside)
            if dtype is not None:
                lost = _in_learner("rounding", dtype.value, str(beside))
        beside.rename(folder)
    except OSError as error:
        raise CliError(
            f"{checkpoint} could not be copied to {folder}: {error}; if the run goes on, and has "
            "made a newer checkpoint meanwhile, try again"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    kind = "adapter" if has_adapter and not merged else "model"
    if as_json:
        answer = {"run": record["id"], "folder": str(folder), "kind": kind}
        print_json({**answer, "rounding": lost} if lost else answer)
        return
    out.print(f"[green]exported[/] {checkpoint.name} of {record['name']}: {kind} in {folder}")
    if lost:
        err.print(f"[dim]{escape(lost)}[/]", soft_wrap=True)


def _copy(checkpoint: Path, folder: Path) -> None:
    """Copy a checkpoint, without the files that only Headrace reads. The files get the usual modes:
    earlier versions closed checkpoints to all other users."""
    folder.mkdir()
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint)
        if name.parts[0] in OURS:
            continue
        if path.is_dir():
            (folder / name).mkdir()
        else:
            shutil.copyfile(path, folder / name)


def _in_learner(tool: str, *arguments: str) -> str:
    """Run a tool that needs torch. Return its sentence about the loss by rounding."""
    done = run_tool(tool, *arguments, capture=True)
    if done.returncode != 0:
        raise CliError("nothing was written", code=done.returncode)
    return done.stdout.strip()
