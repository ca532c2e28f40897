"""`headrace chat`: prompts to a run's policy while it trains, to a checkpoint afterwards, or to any
model folder."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, Data, GatewayURL, connect, run_and_step
from headrace.cli.output import FINAL, INTERRUPTED, CliError, err, escape, print_json
from headrace.cli.runs.chains import run_of
from headrace.cli.server_part import server_part
from headrace.nearby_models import CONFIGS
from headrace.wording import cut_at

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

ENDING = (*FINAL, "cancelling")
LOADED_SECONDS = 900.0
"""The longest wait until a worker has loaded a model."""


def chat(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_PATH",
            help="A run, RUN@STEP for its policy after so many steps, or a model's folder.",
        ),
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
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 256,
    temperature: Annotated[
        float, typer.Option(help="0: the likeliest token each time.", min=0.0, max=10.0)
    ] = 0.0,
    data: Data = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Talk to a run's policy, or to any model folder.

    Rollout workers answer: of a run that trains its own, of a finished run those that have no run.
    Without such a worker the newest checkpoint of a finished run is loaded here. A run's prompts go
    into its data.template, with its data.system, as in training.

    Example:
    headrace chat RUN 'What is 27 + 35?'
    """
    if as_json and prompt is None:
        raise CliError("chat --json answers one prompt: give it one")
    sampling = {"max_tokens": max_tokens, "temperature": temperature}
    options: list[str] = []
    path = _model_folder(model)
    if path is None:
        api = connect(gateway, data)
        reference, step = run_and_step(model)
        record = _record(api, reference)
        options = prompt_options(record["config"]["data"], no_template)
        if note := template_note(record["config"]["data"], no_template):
            err.print(f"[dim]{escape(note)}[/]", soft_wrap=True)
        if record["kind"] == "rl" and record["state"] not in ENDING:
            version = "latest" if step is None else str(step)
            name = f"{record['id']}@{version}"
            _ask_policy(api, name, record["config"]["data"], no_template, prompt, sampling, as_json)
            return
        if record["checkpoint"] and _may_be_served(api, record["pool"]):
            name = record["id"] if step is None else f"{record['id']}@{step}"
            _ask_policy(api, name, record["config"]["data"], no_template, prompt, sampling, as_json)
            return
        checkpoints = server_part("models.checkpoints", "chat with a run that is over")
        made_by = checkpoints.run_with_step(api, record, step)
        path = checkpoints.checkpoint_of(made_by, data, step)
    options += [f"--max-tokens={max_tokens}", f"--temperature={temperature}"]
    _ask_folder(path, options, prompt, as_json)


def _record(api: "Gateway", reference: str) -> dict[str, Any]:
    """Return the record of a run, or of a chain's present run. Without a gateway, say what works
    without it."""
    from headrace.cli.client import Away

    try:
        return run_of(api, reference)
    except Away as error:
        raise Away(
            f"{error.message}. A model's folder needs no gateway: name a checkpoint, which is in "
            "runs/ID/checkpoints of the data folder"
        ) from None


def _ask_policy(
    api: "Gateway",
    model: str,
    options: dict[str, Any],
    no_template: bool,
    prompt: str | None,
    sampling: dict[str, Any],
    as_json: bool,
) -> None:
    """Have the run's workers answer one prompt, or each line of standard input."""
    interactive = prompt is None and sys.stdin.isatty()
    try:
        while (asked := prompt if prompt is not None else input("> " if interactive else "")) != "":
            messages = conversation(asked, options, no_template)
            body = {"model": model, "messages": messages, "stream": True, **sampling}
            answer, version, ending = "", model, None
            for chunk in once_loaded(api, body):
                version = chunk["model"]
                choice = chunk["choices"][0]
                text, ending = choice["delta"].get("content") or "", choice.get("finish_reason")
                answer += text
                if not as_json:
                    sys.stdout.write(text)
                    sys.stdout.flush()
            if as_json:
                result = {"model": version, "prompt": asked, "answer": answer}
                print_json({**result, "finish_reason": ending})
            else:
                print(flush=True)
                if ending == "length":
                    err.print(f"[dim]{cut_at(sampling['max_tokens'])}[/]", soft_wrap=True)
            if prompt is not None:
                return
    except EOFError:
        return
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _may_be_served(api: "Gateway", pool: str) -> bool:
    """Whether a worker of the pool serves finished runs now, or would."""
    unable = ("silent", "unhealthy", "stopping")
    return any(
        worker["pool"] == pool
        and worker["state"] not in unable
        and (worker.get("serving_only") or worker["run"] is None)
        for worker in api.get("/v1/workers")["workers"]
    )


def once_loaded(api: "Gateway", body: dict[str, Any]) -> Iterator[Any]:
    """Yield the parts of an answer. Wait while a worker loads the model, and say so."""
    from headrace.cli.client import Away

    deadline, message = time.monotonic() + LOADED_SECONDS, ""
    while True:
        try:
            yield from api.parts("/v1/chat/completions", json=body)
            return
        except Away as error:
            if error.retry_seconds is None or time.monotonic() > deadline:
                raise
            if error.message != message:
                message = error.message
                err.print(f"[dim]{escape(message)}[/]", soft_wrap=True)
            time.sleep(error.retry_seconds)


def conversation(prompt: str, options: dict[str, Any], no_template: bool) -> list[dict[str, str]]:
    """Return a prompt as messages, as a run with this `data` section makes them."""
    asked = [{"role": "user", "content": prompt}]
    if no_template:
        return asked
    if (template := options.get("template")) is not None:
        # Not str.format: prompts and templates may hold braces of their own.
        asked[0]["content"] = template.replace("{prompt}", prompt)
    if (system := options.get("system")) is not None:
        asked.insert(0, {"role": "system", "content": system})
    return asked


def _ask_folder(path: Path, options: list[str], prompt: str | None, as_json: bool) -> None:
    """Load a model here, and let it answer."""
    options = [*options, "--json"] if as_json else options
    asked = () if prompt is None else (prompt,)
    run_tool = server_part("models.learner_tools", "chat with a model's folder").run_tool
    try:
        done = run_tool("chat", *options, "--", str(path), *asked, capture=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if as_json and done.returncode == 0:
        print_json({"model": str(path), "prompt": prompt, **json.loads(done.stdout)})
    raise typer.Exit(done.returncode)


def _model_folder(model: str) -> Path | None:
    """Return the model folder that `model` names, or None if it can only be a run. Raises CliError
    for a path without a model."""
    path = Path(os.path.expanduser(model))
    if any((path / name).is_file() for name in CONFIGS):
        return path
    if "/" not in model and model not in (".", ".."):
        return None
    wrong = "holds no config.json" if path.is_dir() else "is no folder"
    raise CliError(f"{path} {wrong}: name a model's folder in Hugging Face layout, or a run")


def prompt_options(data: dict[str, Any], no_template: bool) -> list[str]:
    """Return options of `chat` that render a prompt as the run with this `data` section does. With
    `no_template` they leave out the run's system message and `data.template`."""
    keys = ("chat_template",) if no_template else ("system", "template", "chat_template")
    given = {key: data.get(key) for key in keys}
    # They belong to the model's own format, as the chat template does.
    if variables := data.get("chat_template_kwargs"):
        given["chat_template_kwargs"] = json.dumps(variables)
    return [f"--{key.replace('_', '-')}={value}" for key, value in given.items() if value]


def template_note(data: dict[str, Any], no_template: bool) -> str:
    """Describe what a run adds to a prompt. Return an empty text if it adds nothing."""
    added = {key: data.get(key) for key in ("system", "template")}
    words = [f"data.{key} {value!r}" for key, value in added.items() if value]
    words = [word for word in words if word != "data.template '{prompt}'"]
    if not words:
        return ""
    if no_template:
        return f"prompts are sent without the run's {' and '.join(words)}"
    return f"prompts get the run's {' and '.join(words)}; --no-template sends them as typed"
