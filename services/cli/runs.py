"""`headrace submit`, `runs`, `watch`, `cancel`, `resume`, `rm`."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape

from recipes import UnknownRecipe, merged, place_in, read_recipe
from services.cli.client import Gateway, GatewayURL
from services.cli.output import AsJson, CliError, ago, err, out, print_json, state, table
from services.cli.watch import watch_run
from services.contracts.config import ConfigError
from services.contracts.records import several_called
from services.settings import Settings

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Its id, the beginning of its id, or its name.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, e.g. optimizer.lr=1e-6 or rewards.0.weight=2. Repeat.",
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")]


def register(root: typer.Typer) -> None:
    """Add these commands to the root."""
    for command in (submit, runs, watch, cancel, resume, rm):
        root.command()(command)


def submit(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A recipe's name (see `headrace recipes`) or a YAML file."
        ),
    ],
    set_: Set = None,
    name: Annotated[str | None, typer.Option(help="Default: the recipe's name.")] = None,
    resume_from: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue from this run's checkpoint.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Who works on it. Default: HEADRACE_POOL, or `default`; the pool of the run that "
            "is resumed."
        ),
    ] = None,
    priority: Annotated[int, typer.Option(min=-1000, max=1000, help="Higher goes first.")] = 0,
    follow: Watch = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Queue a run of RECIPE, some of its keys overridden."""
    overrides = overrides_from(set_ or [])
    request: dict[str, Any] = {"priority": priority, "resume_from": resume_from}
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        try:
            request["config"] = _with_absolute_models(merged(_file(path), overrides))
        except ConfigError as error:
            raise CliError(f"--set {error}") from None
        request["name"] = name or path.stem
    else:
        request |= {"recipe": recipe, "config": _with_absolute_models(overrides), "name": name}
    if pool is None and resume_from is None:
        pool = Settings().pool
    _submit(request | {"pool": pool}, follow, as_json, gateway)


def resume(
    run: Run,
    set_: Set = None,
    name: Annotated[str | None, typer.Option(help="Default: the old run's name.")] = None,
    follow: Watch = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Queue a new run that continues RUN from its last checkpoint, in the same pool."""
    request = {"resume_from": run, "config": overrides_from(set_ or []), "name": name}
    _submit(request, follow, as_json, gateway)


def _submit(request: dict[str, Any], follow: bool, as_json: bool, gateway: str | None) -> None:
    api = Gateway(gateway)
    given = {key: value for key, value in request.items() if value is not None}
    if problem := next(_unsendable(given.get("config"), ""), None):
        raise CliError(problem)
    record = api.post("/v1/runs", json=given)
    if not as_json:
        for warning in record["warnings"]:
            out.print(f"[yellow]warning[/] {escape(warning)}")
    if not follow:
        if as_json:
            print_json(record)
            return
        out.print(
            f"[green]queued[/] [bold]{escape(record['name'])}[/] as {record['id']}\n"
            f"[dim]follow it with: headrace watch {record['id']}[/]"
        )
        return
    raise typer.Exit(watch_run(api, record["id"], as_json))


def runs(as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """All runs, newest first."""
    records = Gateway(gateway).get("/v1/runs")["runs"]
    if as_json:
        print_json(records)
        return
    table(
        ("ID", "NAME", "KIND", "STATE", "STEP", "CREATED", "REASON"),
        [
            (
                record["id"],
                f"[bold]{escape(record['name'])}[/]",
                record["kind"],
                state(record["state"]),
                f"{record['step']}/{record['max_steps'] or '?'}",
                ago(record["created"]),
                escape(record["reason"]),
            )
            for record in records
        ],
        "no runs: submit one with `headrace submit RECIPE` (see `headrace recipes`)",
    )


def watch(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Follow RUN until it ends: exit code 0 succeeded, 1 not. Ctrl-C leaves it running.

    With --json each event is one line of JSON.
    """
    api = Gateway(gateway)
    raise typer.Exit(watch_run(api, api.get(f"/v1/runs/{run}")["id"], as_json))


def cancel(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Cancel RUN; `headrace resume RUN` continues it later from its checkpoint."""
    api = Gateway(gateway)
    before = api.get(f"/v1/runs/{run}")
    record = api.post(f"/v1/runs/{before['id']}/cancel")
    if as_json:
        print_json(record)
        return
    again = before["cancel_requested"] or before["state"] == "cancelled"
    said = "cancelled" if record["state"] == "cancelled" else "cancelling"
    name = f"{escape(record['name'])} ({record['id']})"
    out.print(f"[magenta]{said}[/] {name}" + " already, nothing to do" * again)


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Ids, beginnings of ids, or names."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Delete runs that are over, with their checkpoints, metrics and answers. Datasets stay.

    Refused while another run continues one of them, or one that is not over starts from what it
    made; and for a name that several runs have.
    """
    api = Gateway(gateway)
    listed = api.get("/v1/runs")["runs"]
    found = {record["id"]: record for record in (_only(api, run, listed) for run in runs)}
    # The newest first: it may continue an older one.
    records = sorted(found.values(), key=lambda record: record["created"], reverse=True)
    if not yes:
        _confirm(records)
    gone: list[str] = []
    for record in records:
        try:
            api.delete(f"/v1/runs/{record['id']}")
        except CliError as error:
            before = f"; deleted before it: {', '.join(gone)}" if gone and as_json else ""
            raise CliError(error.message + before, error.problems, error.code) from None
        gone.append(record["id"])
        if not as_json:
            out.print(f"[green]deleted[/] {escape(record['name'])} ({record['id']})")
    if as_json:
        print_json({"deleted": gone})


def _only(api: Gateway, run: str, listed: list[dict[str, Any]]) -> dict[str, Any]:
    """The run that `run` means, where it means one: the same command twice must not delete two."""
    record: dict[str, Any] = api.get(f"/v1/runs/{run}")
    names = ((one["id"], one["name"]) for one in listed)
    if problem := several_called(run, record["id"], names):
        raise CliError(problem)
    return record


def _confirm(records: list[dict[str, Any]]) -> None:
    if not sys.stdin.isatty():
        raise CliError("what is deleted is gone for good: say --yes where nobody can be asked")
    for record in records:
        steps = f"step {record['step']}/{record['max_steps'] or '?'}"
        name = f"[bold]{escape(record['name'])}[/]"
        # Not where --json goes.
        err.print(f"{record['id']}  {name}  {state(record['state'])}  {steps}")
    what = "this run" if len(records) == 1 else f"these {len(records)} runs"
    typer.confirm(f"Delete {what}, checkpoints included?", abort=True, err=True)


def _file(path: Path) -> dict[str, Any]:
    try:
        return read_recipe(str(path), path.read_text()).config
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8 text: is it a recipe?") from None
    except UnknownRecipe as error:
        raise CliError(str(error)) from None


def overrides_from(settings: list[str]) -> dict[str, Any]:
    """`["a.b=1"]` as {"a": {"b": 1}}; values are YAML, and 1e-6 is a number (YAML 1.1 has it as
    text)."""
    result: dict[str, Any] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        parts = key.strip().split(".")
        if not separator or not all(parts):
            raise CliError(f"--set {setting} is not KEY=VALUE, like optimizer.lr=1e-6")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise CliError(f"--set {key}: {text!r} is not a YAML value; quote it twice") from None
        try:
            section, last = _place_of(parts, result)
        except ConfigError as error:
            raise CliError(f"--set {error}") from None
        section[last] = _number(value)
    return result


def _place_of(parts: list[str], config: dict[str, Any]) -> tuple[Any, str | int]:
    """The mapping or list in `config` that the key belongs into, and its last part or index there.
    Raises ConfigError for a place that a list does not have."""
    section: Any = config
    path = ""
    for part in parts[:-1]:
        if isinstance(section, dict):
            section = section.setdefault(part, {})
        else:
            section = section[place_in(section, part, path)]
        path = f"{path}.{part}".lstrip(".")
        if not isinstance(section, dict | list):
            raise CliError(f"--set {'.'.join(parts)}: {path} was set to {section!r} before")
    last = parts[-1]
    return section, last if isinstance(section, dict) else place_in(section, last, path)


def _unsendable(value: Any, path: str) -> Iterator[str]:
    """A sentence for each value that YAML knows and JSON does not."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from _unsendable(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path}: {value} is not a number that a config can hold"
    elif not isinstance(value, str | int | float | bool | None):
        yield f"{path}: {value} is a {type(value).__name__} to YAML; quote it to have it as text"


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() else value
        except ValueError:
            return value
    return value


def _with_absolute_models(config: dict[str, Any]) -> dict[str, Any]:
    """Model folders named relative to where the user stands, as the gateway can find them."""
    model, algorithm = config.get("model"), config.get("algorithm")
    critic = algorithm.get("critic") if isinstance(algorithm, dict) else None
    for section in (model, critic):
        if not isinstance(section, dict):
            continue
        path = section.get("path")
        if isinstance(path, str) and Path(path).expanduser().is_dir():
            section["path"] = str(Path(path).expanduser().resolve())
    return config
