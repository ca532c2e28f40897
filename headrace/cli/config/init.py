"""`headrace init`: a commented config to begin with."""

import json
import re
import textwrap
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli import completion
from headrace.cli.options import AsJson, GatewayURL
from headrace.cli.output import CliError, escape, out, print_json
from headrace.cli.server_part import has_server, server_part

FILE = "run.yaml"
SENTENCE_END = re.compile(r"[.;] (?=[A-Z0-9`])|; ")


class Machine(NamedTuple):
    """The machine and the data that a config is written for."""

    gpus: int
    memory: float
    """GiB of the smallest GPU; 0 without one."""


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path(FILE),
    model: Annotated[
        str | None,
        typer.Option(help="A folder, a hub name, or run:RUN. Default: the one in models/."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Default: the newest one here.", autocompletion=completion.datasets),
    ] = None,
    sft: Annotated[bool, typer.Option("--sft", help="Learn the answers themselves.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Write a commented config for a model, a dataset and the GPUs here.

    `headrace submit FILE` runs it at once. Each key has a line about it; `headrace explain KEY` has
    more.

    Example:
    headrace init --model models/smollm2 --dataset train
    headrace submit run.yaml --watch
    """
    if file.exists() and not force:
        raise CliError(f"{file} is there already: --force replaces it")
    machine = _machine(gateway)
    chosen = model or _model_here()
    data = dataset or _newest_dataset(gateway)
    text = config_text(chosen, data, machine, sft)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"{file} cannot be written: {error.strerror}") from None
    lacking = [key for key, value in (("model.path", chosen), ("data.dataset", data)) if not value]
    if as_json:
        print_json({"file": str(file), "model": chosen, "dataset": data, "lacking": lacking})
        return
    shown = f"{machine.gpus} GPUs of {machine.memory:.0f} GiB" if machine.gpus else "the CPU"
    out.print(f"[green]wrote[/] [bold]{escape(str(file))}[/] for {shown}")
    for key in lacking:
        way = "`headrace models get smollm2`" if key == "model.path" else "`headrace datasets add`"
        out.print(f"  [yellow]{key} is to be filled in:[/] {way} gives one")
    out.print(f"[dim]check it: headrace submit {escape(str(file))} --dry-run[/]", soft_wrap=True)


def config_text(model: str | None, dataset: str | None, machine: Machine, sft: bool) -> str:
    """Return the YAML of a config. Pure. A model or dataset that is None is left to the user."""
    on_cpu = machine.gpus == 0
    values: dict[str, Any] = {
        "model.path": model,
        "model.dtype": "float32" if on_cpu else "bfloat16",
        "data.dataset": dataset,
    }
    if sft:
        values |= {
            "data.max_seq_len": 512 if on_cpu else 2048,
            "optimizer.lr": 1e-5,
            "training.epochs": 1,
            "training.rows_per_step": 8 if on_cpu else 64,
            "training.checkpoint_every": 20,
        }
    else:
        values |= {
            "data.template": "{prompt}",
            "rewards": [{"verifier": "math"}],
            "sampling.max_tokens": 128 if on_cpu else 1024,
            "rollout.max_staleness": 1,
            "rollout.vllm.max_model_len": 512 if on_cpu else 2048,
            **({"rollout.vllm.dtype": "float32"} if on_cpu else {}),
            "algorithm.prompts_per_step": 4 if on_cpu else 32,
            "algorithm.samples_per_prompt": 4 if on_cpu else 8,
            "optimizer.lr": 1e-5 if on_cpu else 1e-6,
            "training.max_steps": 20 if on_cpu else 200,
            "training.checkpoint_every": 10 if on_cpu else 20,
        }
    return _as_yaml(values, machine, sft)


def _as_yaml(values: dict[str, Any], machine: Machine, sft: bool) -> str:
    """Write values by their key paths, each with its description as a comment."""
    from headrace.cli.config.explained_keys import explained

    place = f"{machine.gpus} GPUs of {machine.memory:.0f} GiB" if machine.gpus else "a CPU"
    lines = [
        f"# A {'supervised' if sft else 'GRPO'} run on {place}, written by `headrace init`.",
        "#   headrace submit run.yaml --dry-run    what it needs, and whether it fits",
        "#   headrace submit run.yaml --watch      run it",
        "# `headrace explain KEY` says more about a key. A key that is left out has its default.",
        f"type: {'sft' if sft else 'rl'}",
    ]
    sections: list[str] = []
    for key, value in values.items():
        *above, name = key.split(".")
        for depth, section in enumerate(above):
            if sections[depth : depth + 1] != [section]:
                sections = [*above[:depth], section]
                lines += ([""] if depth == 0 else []) + [f"{'  ' * depth}{section}:"]
        if not above:
            sections, lines = [], [*lines, ""]
        explanation = explained(key)
        about = explanation.meanings[0].description if explanation and explanation.meanings else ""
        indent = "  " * len(above)
        if about:
            # `e.g. to` ends no sentence.
            sentence = SENTENCE_END.split(about)[0].rstrip(".")
            start = f"{indent}# "
            lines += textwrap.wrap(
                sentence, 100, initial_indent=start, subsequent_indent=start, break_on_hyphens=False
            )
        lines.append(f"{indent}{name}: {_shown(value)}")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    """Return a value as YAML 1.1 reads it: 1e-05 would be a text."""
    if value is None:
        return "FILL_IN"
    return f"{value:.1e}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _machine(gateway: str | None) -> Machine:
    """The GPUs of this machine; of the workers, if this machine only asks a gateway."""
    if has_server():
        memories = [gpu.memory for gpu in server_part("host.gpus", "init").described_gpus()]
    else:
        workers = _listed(gateway, "workers")
        memories = [gpu["memory"] for worker in workers for gpu in worker.get("devices") or ()]
    return Machine(len(memories), min(memories, default=0) / 2**30)


def _model_here() -> str | None:
    """Return the only model folder in `models`, or None."""
    folders = [config.parent for config in Path("models").glob("*/config.json")]
    return str(folders[0]) if len(folders) == 1 else None


def _newest_dataset(gateway: str | None) -> str | None:
    """Return the newest dataset, or None without a gateway or a dataset."""
    records = _listed(gateway, "datasets")
    newest = max(records, key=lambda record: float(record["created"]), default=None)
    return None if newest is None else str(newest["name"])


def _listed(gateway: str | None, items: str) -> list[dict[str, Any]]:
    """Return what the gateway lists, or nothing without a gateway."""
    from headrace.cli.client import Gateway

    try:
        api = Gateway(gateway, answer=completion.WAIT)
        return list(api.pages(f"/v1/{items}", items))
    except CliError:
        return []
