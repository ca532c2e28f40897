"""`headrace submit`, `resume` and `fork`: from a recipe, a file and `--set` to a queued run."""

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import known_recipes
from headrace.cli import completion
from headrace.cli.options import (
    AsJson,
    GatewayURL,
    Notes,
    Priority,
    Run,
    connect,
    pool_of,
    run_and_step,
)
from headrace.cli.output import CliError, escape, out, print_json
from headrace.cli.runs.chains import find, follow_chain, show_chain
from headrace.cli.runs.dry_run import show_chain_dry_run, show_dry_run
from headrace.cli.runs.overrides import Set, file_text, overrides_from
from headrace.cli.runs.printed_rows import show_checked
from headrace.cli.runs.runs import follow_run
from headrace.config_keys import MODEL_PATHS, agents_lease, text_at, with_value
from headrace.merging import NoSuchPlace, merged
from headrace.nearby_models import nearby
from headrace.nearest import did_you_mean
from headrace.recipe import UnknownRecipe, read_recipe
from headrace.run_schema import ROOTS, fields_of, root

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Queue nothing: print what the run needs of each GPU, of the disk and in time, and "
        "what to change where it does not fit. --json has its whole config, too. Exit code 1 where "
        "it would be refused.",
    ),
]
SUBMITTED = ("recipe", "config", "name", "tags", "notes")
"""The keys of a file that is not a config alone."""
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", help="A word to find it by. May be repeated.", show_default=False),
]
Watch = Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")]


def submit(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            autocompletion=completion.recipes,
            help="A recipe's name (see `headrace recipes`) or a YAML file: a run's config, a "
            "`recipe` with the `config` that changes it, or a chain's `steps`.",
        ),
    ],
    set_: Set = None,
    name: Annotated[str | None, typer.Option(help="Default: the recipe's name.")] = None,
    resume_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Continue from this run's checkpoint; RUN@STEP: that of an earlier step.",
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Who works on it. Default: HEADRACE_POOL, or `default`; the pool of the run that "
            "is resumed."
        ),
    ] = None,
    priority: Priority = 0,
    tag: Tag = None,
    notes: Notes = None,
    dry_run: DryRun = False,
    follow: Watch = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Queue a run of RECIPE.

    --set overrides keys of its config. Keys of a chain begin with a step's name (`--set
    rl.training.max_steps=20`).

    Example:
    headrace submit grpo --set model.path=/models/mine --set data.dataset=train
    headrace submit my.yaml --watch
    headrace submit grpo --set optimizer.lr=2e-6 --dry-run
    """
    file = _named_file(recipe)
    is_chain = file is not None and "steps" in file
    overrides = overrides_from(set_ or [], is_chain)
    if file is not None and is_chain:
        if resume_from is not None:
            raise CliError(f"{recipe} is a chain: it does not take --resume-from")
        if notes is not None:
            raise CliError(f"{recipe} is a chain: write its `note:` into the file")
        known = {"pool": pool, "priority": priority or None, "name": name, "tags": tag or None}
        file = {"name": Path(recipe).stem, **file}
        _submit_chain(file, overrides, known, follow, as_json, gateway, dry_run)
        return
    request: dict[str, Any] = {"priority": priority, "resume_from": resume_from}
    request |= _request(recipe, file, overrides, name)
    # Options win over the file.
    labels: dict[str, Any] = {"tags": tag or None, "notes": notes}
    request |= {key: value for key, value in labels.items() if value is not None}
    if pool is None and resume_from is None:
        pool = pool_of(None)
    _submit(request | {"pool": pool}, follow, as_json, gateway, dry_run)


def run_request(recipe: str, settings: list[str]) -> dict[str, Any]:
    """Return the submission of `recipe` (a name or a file) with the keys of `settings`. Raises
    CliError, also for a chain."""
    file = _named_file(recipe)
    if file is not None and "steps" in file:
        raise CliError(f"{recipe} is a chain: name the recipe of one of its steps")
    return _request(recipe, file, overrides_from(settings), None)


def _request(
    recipe: str, file: dict[str, Any] | None, overrides: dict[str, Any], name: str | None
) -> dict[str, Any]:
    if file is None:
        return {"recipe": recipe, "config": _with_files(overrides), "name": name}
    _check_keys(recipe, file)
    # As the API and the steps of chains have it: a recipe, and what it is changed by.
    over = file if file.keys() <= {*SUBMITTED} else {"config": file}
    config = _with_files(_merged(over.get("config") or {}, overrides))
    return over | {"config": config, "name": name or over.get("name") or Path(recipe).stem}


def _check_keys(name: str, file: dict[str, Any]) -> None:
    """Raise CliError, with the intended key, if the file `name` is neither a submission nor a
    config."""
    of_config = {key for kind in ROOTS for key in fields_of(root(kind))}
    is_submission = bool(file.keys() & {*SUBMITTED}) or not file.keys() & of_config
    unknown = [key for key in file if key not in SUBMITTED]
    if not is_submission or not unknown:
        return
    key = str(unknown[0])
    if key in of_config:
        way_out = f"move it into config, beside {_listed(file.keys() & {*SUBMITTED})}"
    else:
        way_out = "a file has recipe, config, name, tags, notes, or steps, or a config's keys"
    hint = did_you_mean(key, (*SUBMITTED, "steps", *of_config)) if key not in of_config else ""
    raise CliError(f"{name}: {key!r} is not known at the top{hint}: {way_out}")


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))


def _named_file(recipe: str) -> dict[str, Any] | None:
    """Return the content of the file `recipe`, or the chain of that name. Return None if `recipe`
    is the name of a recipe."""
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _file(path)
    return _chain_recipe(recipe)


def _chain_recipe(name: str) -> dict[str, Any] | None:
    recipe = next((chain for chain in known_recipes.chains() if chain.name == name), None)
    return recipe.config if recipe else None


def _submit_chain(
    chain: dict[str, Any],
    overrides: dict[str, Any],
    known: dict[str, Any],
    follow: bool,
    as_json: bool,
    gateway: str | None,
    dry_run: bool,
) -> None:
    """Submit the chain of a file. `known` holds the options of the command line."""
    from headrace.cli.runs.chains import submit_chain

    if not isinstance(steps := chain["steps"], list):
        raise CliError("steps is no list: a chain has `steps:`, each with a name and a recipe")
    named = {step.get("name"): step for step in steps if isinstance(step, dict)}
    for step, keys in overrides.items():
        if step not in named or not isinstance(keys, dict):
            listed = ", ".join(map(str, named)) or "none"
            raise CliError(
                f"--set {step}: of a chain a key begins with a step's name ({listed}), like "
                "--set rl.training.max_steps=20"
            )
        config = named[step].get("config") or {}
        named[step]["config"] = _merged(config, keys) if isinstance(config, dict) else config
    for chain_step in named.values():
        if isinstance(chain_step.get("config"), dict):
            chain_step["config"] = _with_files(chain_step["config"])
    given = {key: value for key, value in known.items() if value is not None}
    request = {"pool": pool_of(None), **chain, **given}
    if problem := next(_unsendable(request, ""), None):
        raise CliError(problem)
    if dry_run:
        answer = connect(gateway).post("/v1/chains?dry_run=true", json=request)
        show_chain_dry_run(answer, as_json)
        return
    submit_chain(connect(gateway), request, follow, as_json)


def _is_paused(run: dict[str, Any]) -> bool:
    return run["state"] == "paused" or bool(run.get("paused_by"))


def _go_on(
    api: "Gateway", run: dict[str, Any], *, changes: bool, follow: bool, as_json: bool
) -> None:
    """Let a paused run go on."""
    if changes:
        raise CliError(
            f"run {run['name']} ({run['id']}) is paused and goes on as it is: give it other values "
            f"first, with `{api.command('set', run['id'])} KEY=VALUE`"
        )
    record = api.post(f"/v1/runs/{run['id']}/resume")
    if follow:
        follow_run(api, run["id"], as_json)
    if as_json:
        print_json(record)
    else:
        out.print(f"{escape(run['name'])} ({run['id']}) goes on", soft_wrap=True)


def resume(
    run: Run,
    set_: Set = None,
    name: Annotated[str | None, typer.Option(help="Default: the old run's name.")] = None,
    follow: Watch = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Let a paused RUN go on, or continue RUN, which is over, from its newest checkpoint.

    A paused run goes on as the same run. A run that is over is continued by a new run, which is in
    the same pool, and has the same config with what --set changes. RUN@STEP continues from the
    checkpoint of an earlier step. A run without a checkpoint begins from the first step. An
    evaluation of a model goes on with the rows that are not answered, and a chain with the step
    that failed.

    Example:
    headrace resume RUN --set optimizer.lr=5e-7
    """
    overrides = overrides_from(set_ or [])
    api = connect(gateway)
    reference, step = run_and_step(run)
    named = find(api, reference)
    if named.kind == "run":
        if _is_paused(named.record) and step is None:
            _go_on(api, named.record, changes=bool(set_ or name), follow=follow, as_json=as_json)
            return
        at = "" if step is None else f"@{step}"
        request = {"resume_from": f"{named.record['id']}{at}", "config": overrides, "name": name}
        _submit(request, follow, as_json, gateway)
        return
    if problem := next(_unsendable(overrides, ""), None):
        raise CliError(problem)
    chain = api.post(f"{named.path}/resume", json={"config": overrides})
    if follow:
        follow_chain(api, chain["id"], as_json)
    if as_json:
        print_json(chain)
    else:
        show_chain(chain)


def fork(
    run: Run,
    set_: Set = None,
    name: Annotated[
        str | None, typer.Option(help="Default: RUN's name with -fork.", show_default=False)
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Who works on it. Default: RUN's pool, where it waits until RUN has ended.",
            show_default=False,
        ),
    ] = None,
    priority: Priority = 0,
    tag: Tag = None,
    notes: Notes = None,
    dry_run: DryRun = False,
    follow: Watch = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Queue a new run from a checkpoint of RUN, and leave RUN as it is.

    RUN may still train. RUN@STEP starts from the kept checkpoint of that step (`headrace
    checkpoints RUN` lists them), RUN alone from the newest one. --set changes keys of RUN's config.
    The checkpoint is pinned, and RUN cannot be deleted before its forks.

    Example:
    headrace fork RUN@40 --set optimizer.lr=5e-7 --name lower-lr
    """
    overrides = overrides_from(set_ or [])
    reference, step = run_and_step(run)
    named = find(connect(gateway), reference)
    if named.kind != "run":
        raise CliError(f"{reference} is a chain: fork one of its runs (`headrace chains` has them)")
    request = {
        "step": step,
        "config": overrides,
        "name": name,
        "pool": pool,
        "priority": priority,
        "tags": tag or None,
        "notes": notes,
    }
    _submit(request, follow, as_json, gateway, dry_run, f"{named.path}/fork")


def _submit(
    request: dict[str, Any],
    follow: bool,
    as_json: bool,
    gateway: str | None,
    dry_run: bool = False,
    path: str = "/v1/runs",
) -> None:
    api = connect(gateway)
    given = {key: value for key, value in request.items() if value is not None}
    if problem := next(_unsendable(given.get("config"), ""), None):
        raise CliError(problem)
    if dry_run:
        show_dry_run(api.post(f"{path}?dry_run=true", json=given), as_json)
        return
    record = api.post(path, json=given)
    if not as_json:
        show_checked(record)
        if (step := record.get("resume_step")) is not None:
            how = "was forked from" if record["is_fork"] else "continues"
            at = "at" if record["is_fork"] else "from"
            out.print(f"it {how} run {record['resume_from']} {at} step {step}")
    if not follow:
        if as_json:
            print_json(record)
            return
        out.print(
            f"[green]queued[/] [bold]{escape(record['name'])}[/] as {record['id']}\n"
            f"[dim]follow it with: {escape(api.command('watch', record['id']))}[/]",
            soft_wrap=True,
        )
        if agents_lease(record["config"]):
            played = api.command("agents", record["id"], "--", "COMMAND")
            out.print(f"[dim]play its sessions with: {escape(played)}[/]", soft_wrap=True)
        return
    follow_run(api, record["id"], as_json)


def _file(path: Path) -> dict[str, Any]:
    try:
        return read_recipe(str(path), path.read_text()).config
    except OSError as error:
        known = [str(file) for file in path.parent.glob("*.y*ml")]
        hint = did_you_mean(str(path), known) if isinstance(error, FileNotFoundError) else ""
        raise CliError(f"{path} cannot be read: {error.strerror}{hint}") from None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8 text: is it a recipe?") from None
    except UnknownRecipe as error:
        raise CliError(str(error)) from None


def _merged(config: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    try:
        return merged(config, overrides)
    except NoSuchPlace as error:
        raise CliError(f"--set {error}") from None


def _unsendable(value: Any, path: str) -> Iterator[str]:
    """Yield a sentence for each value that YAML can hold and JSON cannot."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from _unsendable(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path}: {value} is not a number that a config can hold"
    elif not isinstance(value, str | int | float | bool | None):
        yield f"{path}: {value} is a {type(value).__name__} to YAML; quote it to have it as text"


def _is_file(template: str) -> bool:
    """Whether a chat template is the name of a file, rather than a word of the config or a
    template's text."""
    return template not in ("auto", "none") and "{{" not in template and "{%" not in template


def _with_files(config: dict[str, Any]) -> dict[str, Any]:
    """`config` without files that only this host can find: models get absolute paths, and a chat
    template its text. Raises CliError for a template that cannot be read, and for a mistyped model,
    which the gateway could take for a name on the hub."""
    data = config.get("data")
    named = data.get("chat_template") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(named, str) and _is_file(named):
        config = {**config, "data": {**data}}
        config["data"]["chat_template"] = file_text("data.chat_template", named)
    for key in MODEL_PATHS:
        path = text_at(config, key)
        if path is None:
            continue
        folder = os.path.expanduser(path)
        if os.path.isdir(folder):
            config = with_value(config, key, os.path.realpath(folder))
        elif folder != path:
            # The home folder is this user's, not the gateway's.
            config = with_value(config, key, folder)
        elif not os.path.isabs(folder) and (near := nearby(path, Path.cwd())):
            raise CliError(f"there is no model folder {path!r} here (did you mean {near!r}?)")
    return config
