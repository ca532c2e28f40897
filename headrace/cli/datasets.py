"""`headrace datasets …`: add, gym, verifiers, list, show, rm."""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import markup

from headrace.cli.command import Commands
from headrace.cli.dataset_files import files_at, hub_form, send_files, with_name
from headrace.cli.dataset_words import findings_in_words, print_added
from headrace.cli.options import AsJson, Dataset, GatewayURL, connect
from headrace.cli.output import CliError, ago, escape, out, print_json, size, table
from headrace.cli.server_part import server_part
from headrace.cli.values import set_value
from headrace.wording import counted

PARTS = ("prompt", "answer", "columns")
"""The parts of a row."""
MOST = 600
"""Characters of a part that are shown."""
commands = Commands(help="Upload, list, show and remove datasets.")


@commands.command()
def add(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] FILE...",
            help="A .jsonl, .json, .csv, .parquet or .tar file, or several, a folder of them, or a "
            "pattern like 'train-*.parquet': they become one dataset, in this order, with the "
            "name before them. Or hf://ORG/NAME/CONFIG/SPLIT, a dataset of the hub.",
        ),
    ] = None,
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
    skip_bad_rows: Annotated[
        bool,
        typer.Option(
            "--skip-bad-rows", help="Leave out rows that cannot be used, and name the first."
        ),
    ] = False,
    hub: Annotated[
        str | None,
        typer.Option(
            metavar="ORG/NAME", help="A dataset of the hub, which the gateway fetches, for FILE."
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Of the hub's dataset. Default: train.")] = None,
    config: Annotated[
        str | None, typer.Option(help="Of the hub's dataset, if it has several.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Of the hub's dataset. Default: the newest.")
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Upload FILE, or several files, as a dataset.

    Example:
    headrace datasets add train.jsonl --prompt question --answer answer
    headrace datasets add train 'train-*.parquet'
    headrace datasets add gsm8k --hub openai/gsm8k --split train
    """
    name, files, hub = with_name(name, files or [], hub)
    paths = [path for file in files for path in files_at(file)]
    form = hub_form(hub, revision, config, split)
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
    if skip_bad_rows:
        form["bad_rows"] = "skip"
    print_added(send_files(connect(gateway), paths, form), as_json)


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
    tasks = server_part("generated_rows", "headrace datasets gym")
    config: dict[str, Any] = {}
    for assignment in set_ or []:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise CliError(f"--set {assignment!r} is not KEY=VALUE")
        config[key] = set_value(key, value)
    words = ["reasoning-gym", task, f"size={size_}", f"seed={seed}", *(set_ or [])]
    with tempfile.TemporaryFile() as content:
        try:
            words.insert(1, tasks.gym_version())
            content.writelines(tasks.gym_rows(task, size_, seed, config))
        except tasks.DatasetError as error:
            raise CliError(str(error)) from None
        content.seek(0)
        form = {"name": name or task, "mapping": tasks.MAPPING, "source": " ".join(words)[:200]}
        record = connect(gateway).post(
            "/v1/datasets", data=form, files={"file": (f"{task}.jsonl", content)}
        )
    print_added(record, as_json)


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
    tasks = server_part("generated_rows", "headrace datasets verifiers")
    with tempfile.TemporaryFile() as content:
        try:
            content.writelines(tasks.rows_of(environment, config, size_))
        except tasks.NoEnvironment as error:
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
    print_added(record, as_json)


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
    model: Annotated[
        str | None, typer.Option(metavar="PATH", help="Count tokens of this model, too.")
    ] = None,
    verifier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Read all references with this verifier. Repeat for several."
        ),
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Show a dataset, its lengths and repetitions, and its first rows.

    Example:
    headrace datasets show train --rows 5
    headrace datasets show train --model ./Qwen3-0.6B --verifier math
    """
    api = connect(gateway)
    record = api.get(f"/v1/datasets/{dataset}")
    findings = api.get(f"/v1/datasets/{dataset}/findings", model=model, verifier=verifier)
    preview = api.get(f"/v1/datasets/{dataset}/preview", limit=rows)["rows"]
    if as_json:
        print_json({**record, "findings": findings, "preview": preview})
        return
    out.print(
        f"[bold]{escape(record['name'])}[/]  {counted(record['rows'], 'row')} in "
        f"{counted(len(record['segments']), 'segment')}, "
        f"id {record['id']}, from {escape(record['source'])}"
    )
    if record["defaults"]:
        verifiers = ", ".join(reward["verifier"] for reward in record["defaults"]["rewards"])
        out.print(f"[dim]scored by {escape(verifiers)}, unless a submission names rewards[/]")
    for line, is_warning in findings_in_words(findings):
        out.print(f"[{'yellow' if is_warning else 'dim'}]{escape(line)}[/]")
    for row in preview:
        out.print(f"\n[dim]row {row['index']}[/]")
        for part in PARTS:
            if row[part] not in (None, {}):
                out.print(f"[cyan]{part}:[/] {markup.escape(_cut(_text(row[part])))}")
    if any(len(_text(row[part])) > MOST for row in preview for part in PARTS):
        out.print("\n[dim]long texts are cut: -o json prints them whole[/]")


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


def _cut(text: str) -> str:
    left = len(text) - MOST
    return f"{text[:MOST]} … and {counted(left, 'character')} more" if left > 0 else text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
