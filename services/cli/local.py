"""Commands that work on this machine instead of over REST: `up`, `demo`, `logs`, `chat`.

What they start is imported only when it is asked for, so that `headrace runs` stays quick.
"""

import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from services.cli.client import Gateway, GatewayURL
from services.cli.output import INTERRUPTED, AsJson, CliError, err, out, print_json, size, table
from services.contracts.config.data import PromptOptions
from services.contracts.weights import ADAPTER_CONFIG
from services.settings import EXIT_SETTINGS, Settings

Data = Annotated[Path | None, typer.Option(help="The data folder. Default: HEADRACE_DATA.")]


def register(root: typer.Typer) -> None:
    """Add these commands to the root."""
    for command in (up, demo, logs, chat):
        root.command()(command)


def up(
    data: Data = None,
    host: Annotated[str, typer.Option(help="Where the gateway listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The gateway's port; 0: any free one.")] = 8000,
    reward_port: Annotated[int, typer.Option(help="The reward service's port.")] = 8002,
    redis_port: Annotated[
        int | None, typer.Option(help="Default: 6379, or any free one if that is taken.")
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use this Redis, and start none. Default: HEADRACE_REDIS_URL, if it is set.",
        ),
    ] = None,
    allow_unsafe_redis: Annotated[
        bool,
        typer.Option(
            "--allow-unsafe-redis",
            help="Accept a Redis that may lose acknowledged work (docs/operate.md says when).",
        ),
    ] = False,
    rollouts: Annotated[
        int, typer.Option(help="Rollout workers, each on cores or GPUs of its own.", min=0)
    ] = 1,
    ranks: Annotated[int, typer.Option(help="Learner ranks.", min=1)] = 1,
    pool: Annotated[str, typer.Option(help="The pool of learner and workers.")] = "default",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTS", help="Start only these, e.g. gateway,reward,redis."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTS", help="Start all but these, e.g. learner,rollout."),
    ] = None,
) -> None:
    """Start everything on this machine; Ctrl-C ends it.

    The parts are redis, gateway, reward, rollout and learner.
    """
    from services.launch import (
        ALL_PARTS,
        LaunchError,
        UpOptions,
        given_redis_url,
        parts_named,
        run,
    )

    try:
        parts = parts_named(",".join(only)) if only else ALL_PARTS
        parts -= parts_named(",".join(without or []))
    except LaunchError as error:
        raise CliError(str(error), code=EXIT_SETTINGS) from None
    try:
        options = UpOptions(
            data=data or Settings().data,
            host=host,
            port=port,
            reward_port=reward_port,
            redis_port=redis_port,
            redis_url=redis_url or given_redis_url(),
            allow_unsafe_redis=allow_unsafe_redis or Settings().allow_unsafe_redis,
            rollouts=rollouts,
            ranks=ranks,
            pool=pool,
            parts=parts,
        )
        code = run(options)
    except LaunchError as error:
        raise CliError(str(error)) from None
    raise typer.Exit(code)


def demo(
    data: Annotated[
        Path | None, typer.Option(help="The data folder. Default: `demo` in HEADRACE_DATA.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A few steps: everything is tried, nothing is learned."),
    ] = False,
    gateway: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Start nothing: have the installation of this gateway do it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """See a policy learn, from nothing, in a few minutes on two cores.

    The last line on stdout is one JSON object.
    """
    from services.demo import run as run_demo

    raise typer.Exit(run_demo(data=data, quick=quick, as_json=as_json, gateway=gateway))


def logs(
    process: Annotated[
        str | None,
        typer.Argument(metavar="PROCESS", help="E.g. gateway, learner, rollout-0, vllm-WORKER."),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Lines to begin with.", min=0)] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """The end of a process' log; without PROCESS, which logs there are."""
    folder = (data or Settings().data) / "logs"
    files = sorted(folder.glob("*.log"))
    if not files:
        raise CliError(
            f"there are no logs in {folder}: is --data (HEADRACE_DATA) the folder of `headrace up`?"
        )
    if process is None:
        _list_logs(files, as_json)
        return
    path = folder / f"{process}.log"
    if path not in files:
        names = ", ".join(file.stem for file in files)
        raise CliError(f"there is no log of {process!r}; there is {names}")
    with path.open(encoding="utf-8", errors="replace") as file:
        last = [line.rstrip("\n") for line in deque(file, lines)]
        if as_json:
            print_json({"process": process, "path": str(path), "lines": last})
            return
        for line in last:
            typer.echo(line)
        try:
            while follow:
                # A rotated log starts again from its beginning.
                if path.stat().st_size < file.tell():
                    file.seek(0)
                if text := file.read():
                    typer.echo(text, nl=False)
                else:
                    time.sleep(0.3)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _list_logs(files: list[Path], as_json: bool) -> None:
    if as_json:
        print_json([{"process": file.stem, "path": str(file)} for file in files])
        return
    table(
        ("PROCESS", "SIZE", "FILE"),
        [
            (f"[bold]{escape(file.stem)}[/]", size(file.stat().st_size), escape(str(file)))
            for file in files
        ],
        "no logs",
    )
    out.print("\n[dim]headrace logs PROCESS shows one; --follow goes on[/]")


def chat(
    model: Annotated[
        str, typer.Argument(metavar="RUN_OR_PATH", help="A run, or a model's folder.")
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Without it, prompts are asked for one by one."),
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Talk to a run's newest checkpoint, or to any model folder."""
    if as_json and prompt is None:
        raise CliError("chat --json answers one prompt: give it one")
    options: list[str] = []
    path = _model_folder(model)
    if path is None:
        record = run_with_checkpoint(Gateway(gateway), model)
        path, options = checkpoint_of(record, data), rendering_of(record["config"])
    command = [sys.executable, "-m", "learner.chat", *options, "--", str(path)]
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
    """The folder that `model` is; None where it can only be a run. Raises CliError for a path
    without a model."""
    path = Path(os.path.expanduser(model))
    if any((path / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
        return path
    if "/" not in model and model not in (".", ".."):
        return None
    wrong = "holds no config.json" if path.is_dir() else "is no folder"
    raise CliError(f"{path} {wrong}: name a model's folder in Hugging Face layout, or a run")


def run_with_checkpoint(api: Gateway, reference: str) -> dict[str, Any]:
    """The run whose checkpoint is meant: of several with this name the newest that has one, else
    the newest. Which one it is, is said on stderr."""
    record: dict[str, Any] = api.get(f"/v1/runs/{reference}")
    if record["id"] == reference or record["name"] != reference:
        return record
    runs: list[dict[str, Any]] = api.get("/v1/runs")["runs"]
    named = [one for one in runs if one["name"] == reference]
    made = next((one for one in named if one["checkpoint"] is not None), None)
    if made is None:
        return record
    if len(named) > 1:
        taken = f"of {len(named)} runs named {reference} {made['id']} is taken, the newest with a"
        err.print(f"[dim]{escape(taken)} checkpoint ({made['state']})[/]", soft_wrap=True)
    return made


def checkpoint_of(record: dict[str, Any], data: Path | None) -> Path:
    """The folder of the run's current checkpoint. Raises CliError where it is not here."""
    data = data or Settings().data
    if record["checkpoint"] is None:
        raise CliError(
            f"run {record['name']} ({record['id']}) is {record['state']} and has no checkpoint yet"
        )
    path = data / str(record["checkpoint"])
    if not path.is_dir():
        raise CliError(
            f"the checkpoint {record['checkpoint']} is not in {data}: name the data folder with "
            "--data or HEADRACE_DATA"
        )
    return path


def rendering_of(config: dict[str, Any]) -> list[str]:
    """The options of `learner.chat` that put a prompt before the model as a run's config does."""
    given = {key: config["data"].get(key) for key in PromptOptions.model_fields}
    return [f"--{key.replace('_', '-')}={value}" for key, value in given.items() if value]
