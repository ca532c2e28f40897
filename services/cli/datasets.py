"""`headrace datasets …`: add, gym, verifiers, list, show, rm."""

import contextlib
import glob
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich import markup

from services.cli.command import Commands
from services.cli.options import AsJson, Dataset, GatewayURL, connect
from services.cli.output import CliError, ago, escape, out, print_json, size, table
from services.cli.runs.overrides import set_value
from services.contracts.wording import counted

commands = Commands(help="Upload, list, show and remove datasets.")

FILES = "a .jsonl, .json, .csv, .parquet or .tar file"


@commands.command()
def add(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="A .jsonl, .json, .csv, .parquet or .tar file, or several, or a pattern like "
            "'train-*.parquet': they become one dataset, in this order.",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Default: the file's name.")] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COL",
            help="Column of the prompt, or a path like extra.question. Repeat to join several. "
            "Default: guessed.",
        ),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COL", help="The same for the answer. Repeat for several. Default: guessed."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COL", help="Other columns to keep. Repeat. Default: all of them."),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="FILE is a well-known one, as its authors ship it: gsm8k, math, humaneval, mbpp, "
            "ifeval, countdown, reasoning_gym. The dataset has its template and verifier.",
        ),
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Read all answers with this verifier at once, and count those "
            "that it cannot read. A mapping brings its own.",
        ),
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="jsonl, csv, parquet or tar. Default: guessed.")
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Upload FILE, or several files, as a dataset.

    Example:
    headrace datasets add train.jsonl --prompt question --answer answer
    headrace datasets add 'train-*.parquet' --name train
    """
    paths = [path for file in files for path in _paths(file)]
    form: dict[str, str] = {}
    columns = {"prompt": _one_or_all(prompt), "answer": _one_or_all(answer), "keep": keep}
    named = {key: column for key, column in columns.items() if column}
    if named and mapping:
        raise CliError(f"--mapping {mapping} names the columns, and so does --{next(iter(named))}")
    if named or mapping:
        form["mapping"] = mapping or json.dumps(named)
    if name is not None:
        form["name"] = name
    if format is not None:
        form["format"] = format
    if verifier is not None:
        form["verifier"] = verifier
    with contextlib.ExitStack() as opened:
        parts = [("file", (path.name, opened.enter_context(_open(path)))) for path in paths]
        record = connect(gateway).post("/v1/datasets", data=form, files=parts)
    _added(record, as_json)


def _paths(file: str) -> list[Path]:
    """List the file with this name, or the files that match it, sorted by names and numbers."""
    path = Path(file)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise CliError(f"{file} is a folder: name its files, e.g. '{path / '*.parquet'}'")
    files = [
        Path(name) for name in sorted(glob.glob(file), key=_by_numbers) if os.path.isfile(name)
    ]
    if not files:
        raise CliError(f"{file} does not exist: name {FILES}")
    return files


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts part-2 before part-10."""
    return [(int(p) if p.isdecimal() else -1, p) for p in re.split(r"([0-9]+)", name)]


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from None


def _one_or_all(columns: list[str] | None) -> str | list[str] | None:
    return columns[0] if columns and len(columns) == 1 else columns


@commands.command()
def gym(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="A task of reasoning-gym, e.g. chain_sum.")
    ],
    size_: Annotated[int, typer.Option("--size", help="Rows.", min=1, max=1_000_000)] = 500,
    seed: Annotated[int, typer.Option(help="The same rows for the same seed.", min=0)] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="The task's config. Repeat for several."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: the task's name.")] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Upload the rows of a reasoning-gym task, with its verifier.

    Example:
    headrace datasets gym chain_sum --size 500 --seed 0
    """
    from services.datasets.generated import MAPPING, gym_rows, gym_version
    from services.datasets.row_checks import DatasetError

    config: dict[str, Any] = {}
    for assignment in set_ or []:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise CliError(f"--set {assignment!r} is not KEY=VALUE")
        config[key] = set_value(key, value)
    words = ["reasoning-gym", task, f"size={size_}", f"seed={seed}", *(set_ or [])]
    with tempfile.TemporaryFile() as content:
        try:
            words.insert(1, gym_version())
            content.writelines(gym_rows(task, size_, seed, config))
        except DatasetError as error:
            raise CliError(str(error)) from None
        content.seek(0)
        form = {"name": name or task, "mapping": MAPPING, "source": " ".join(words)[:200]}
        record = connect(gateway).post(
            "/v1/datasets", data=form, files={"file": (f"{task}.jsonl", content)}
        )
    _added(record, as_json)


@commands.command()
def verifiers(
    environment: Annotated[
        str,
        typer.Argument(metavar="NAME", help="An installed environment of the library verifiers."),
    ],
    size_: Annotated[int, typer.Option("--size", help="Its first tasks.", min=1)] = 500,
    config: Annotated[
        Path | None,
        typer.Option("--environment-config", metavar="FILE", help="Its config, TOML or JSON."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: the environment's name.")] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Upload the tasks of an environment of the library verifiers.

    `headrace agents RUN --verifiers NAME` plays them.

    Example:
    headrace datasets verifiers gsm8k --size 100
    """
    from services.environments.playing import NoEnvironment
    from services.environments.verifiers_taskset import rows_of

    with tempfile.TemporaryFile() as content:
        try:
            content.writelines(rows_of(environment, config, size_))
        except NoEnvironment as error:
            raise CliError(str(error)) from None
        content.seek(0)
        form = {
            "name": name or environment.rpartition("/")[2],
            "mapping": json.dumps({"prompt": "prompt"}),
            "source": f"verifiers {environment} size={size_}"[:200],
        }
        record = connect(gateway).post(
            "/v1/datasets", data=form, files={"file": ("tasks.jsonl", content)}
        )
    _added(record, as_json)


def _added(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    # An older gateway does not tell them apart.
    done = "[green]added[/]" if record.get("added", True) else "there already:"
    out.print(
        f"{done} [bold]{escape(record['name'])}[/] ({counted(record['rows'], 'row')}, "
        f"id {record['id']})"
    )
    for line in (_mapping(record["mapping"]), *_left_over(record), *record["notes"]):
        out.print(f"[dim]{escape(line)}[/]")
    for warning in record["warnings"]:
        out.print(f"[yellow]warning[/] {escape(warning)}")
    if record["duplicates"]:
        out.print(
            "[yellow]warning[/] runs sample prompts more often that are there more than once: "
            f"{counted(record['duplicates'], 'repetition')} of the prompt and answer of an earlier "
            "row"
        )


def _mapping(used: dict[str, Any] | str) -> str:
    if isinstance(used, str):
        return f"rows of {used}, with its template and verifier"
    prompts = f"prompts are column {used['prompt']!r}"
    if isinstance(used["prompt"], list):
        listed = " and ".join(map(repr, used["prompt"]))
        prompts = f"prompts are columns {listed}, joined by a blank line"
    match used["answer"]:
        case None:
            return f"{prompts}, and no column was taken for the answer: --answer COL names one"
        case list(names):
            return f"{prompts}, answers are columns {', '.join(map(repr, names))}"
        case name if name == used["prompt"]:
            return f"{prompts}; where it holds chats, the last turn of each is the answer"
        case name:
            return f"{prompts}, answers are column {name!r}"


def _left_over(record: dict[str, Any]) -> list[str]:
    columns = record["left_over"]
    if not columns or isinstance(record["mapping"], str):
        return []
    more = f" and {len(columns) - 20} more" if len(columns) > 20 else ""
    return [f"in neither prompt nor answer: {', '.join(map(repr, columns[:20]))}{more}"]


@commands.command("list")
def list_(as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """List all datasets.

    Example:
    headrace datasets list
    """
    records = list(connect(gateway).pages("/v1/datasets", "datasets"))
    if as_json:
        print_json(records)
        return
    table(
        ("NAME", "ID", "ROWS", "SIZE", "CREATED", "SOURCE"),
        [
            (
                f"[bold]{escape(record['name'])}[/]",
                record["id"],
                f"{record['rows']:,}",
                size(sum(segment["bytes"] for segment in record["segments"])),
                ago(record["created"]),
                escape(record["source"]),
            )
            for record in records
        ],
        "no datasets: add one with `headrace datasets add FILE`",
    )


@commands.command()
def show(
    dataset: Dataset,
    rows: Annotated[int, typer.Option(help="Rows to show.", min=1, max=100)] = 3,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Show a dataset and its first rows.

    Example:
    headrace datasets show train --rows 5
    """
    api = connect(gateway)
    record = api.get(f"/v1/datasets/{dataset}")
    preview = api.get(f"/v1/datasets/{dataset}/preview", limit=rows)["rows"]
    if as_json:
        print_json({**record, "preview": preview})
        return
    out.print(
        f"[bold]{escape(record['name'])}[/]  {counted(record['rows'], 'row')} in "
        f"{counted(len(record['segments']), 'segment')}, "
        f"id {record['id']}, from {escape(record['source'])}"
    )
    if record["defaults"]:
        verifiers = ", ".join(reward["verifier"] for reward in record["defaults"]["rewards"])
        out.print(f"[dim]scored by {escape(verifiers)}, unless a submission names rewards[/]")
    for row in preview:
        out.print(f"\n[dim]row {row['index']}[/]")
        for part in ("prompt", "answer", "columns"):
            if row[part] not in (None, {}):
                out.print(f"[cyan]{part}:[/] {markup.escape(_text(row[part]))}")


@commands.command()
def rm(dataset: Dataset, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Delete a dataset.

    Refused while a run uses it.

    Example:
    headrace datasets rm train
    """
    connect(gateway).delete(f"/v1/datasets/{dataset}")
    if as_json:
        print_json({"deleted": dataset})
    else:
        out.print(f"[green]deleted[/] {escape(dataset)}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
