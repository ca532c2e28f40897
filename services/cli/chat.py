"""`headrace chat`: prompts to a run's newest checkpoint, or to any model folder."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.checkpoints import checkpoint_of, run_with_checkpoint
from services.cli.options import AsJson, Data, GatewayURL, connect
from services.cli.output import INTERRUPTED, CliError, err, escape, print_json
from services.contracts.weights import ADAPTER_CONFIG


def chat(
    model: Annotated[
        str, typer.Argument(metavar="RUN_OR_PATH", help="A run, or a model's folder.")
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Without it, prompts are asked for one by one."),
    ] = None,
    no_template: Annotated[
        bool,
        typer.Option(
            "--no-template",
            help="Send prompts as typed, without the run's data.template and data.system.",
        ),
    ] = False,
    data: Data = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Talk to a run's newest checkpoint, or to any model folder.

    A run's prompts go into its data.template, with its data.system, as in training.
    """
    if as_json and prompt is None:
        raise CliError("chat --json answers one prompt: give it one")
    options: list[str] = []
    path = _model_folder(model)
    if path is None:
        record = run_with_checkpoint(connect(gateway), model)
        path = checkpoint_of(record, data)
        options = prompt_options(record["config"]["data"], no_template)
        if said := template_note(record["config"]["data"], no_template):
            err.print(f"[dim]{escape(said)}[/]", soft_wrap=True)
    command = [sys.executable, "-m", "learner.tools.chat", *options, "--", str(path)]
    if prompt is not None:
        command.append(prompt)
    try:
        done = subprocess.run(
            command, check=False, text=True, stdout=subprocess.PIPE if as_json else None
        )
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if as_json and done.returncode == 0:
        print_json({"model": str(path), "prompt": prompt, "answer": done.stdout.rstrip("\n")})
    raise typer.Exit(done.returncode)


def _model_folder(model: str) -> Path | None:
    """The folder that `model` is; None if it can only be a run. Raises CliError for a path
    without a model."""
    path = Path(os.path.expanduser(model))
    if any((path / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
        return path
    if "/" not in model and model not in (".", ".."):
        return None
    wrong = "holds no config.json" if path.is_dir() else "is no folder"
    raise CliError(f"{path} {wrong}: name a model's folder in Hugging Face layout, or a run")


def prompt_options(data: dict[str, Any], no_template: bool) -> list[str]:
    """The options of `chat` that render a prompt as the run with this `data` section does, or with
    `no_template` without its own words."""
    keys = ("chat_template",) if no_template else ("system", "template", "chat_template")
    given = {key: data.get(key) for key in keys}
    return [f"--{key.replace('_', '-')}={value}" for key, value in given.items() if value]


def template_note(data: dict[str, Any], no_template: bool) -> str:
    """What a run adds to a prompt, in words; empty if it adds nothing."""
    added = {key: data.get(key) for key in ("system", "template")}
    words = [f"data.{key} {value!r}" for key, value in added.items() if value]
    words = [word for word in words if word != "data.template '{prompt}'"]
    if not words:
        return ""
    if no_template:
        return f"prompts are sent without the run's {' and '.join(words)}"
    return f"prompts get the run's {' and '.join(words)}; --no-template sends them as typed"
