"""`headrace verifiers …` and `headrace score`: rewards, one's own among them."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import completion
from headrace.cli.command import Commands
from headrace.cli.options import AsJson, GatewayURL, connect
from headrace.cli.output import (
    WRONG_USAGE,
    CliError,
    escape,
    out,
    print_below,
    print_json,
    table,
)
from headrace.cli.values import set_value
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

commands = Commands(help="List, add and remove verifiers, which give rewards.")
LOOK_SECONDS = 0.5
PATIENCE = 60.0
"""Seconds that the reward service has to start again."""
STYLES = {"correct": "green", "wrong": "red", "error": "red", "timeout": "red"}

Verifier = Annotated[
    str,
    typer.Argument(
        metavar="VERIFIER", help="Its name, or NAME@VERSION.", autocompletion=completion.verifiers
    ),
]
Row = Annotated[int, typer.Option("--row", min=0, help="The row of --dataset.")]
ScoredRow = Annotated[
    int | None, typer.Option("--row", min=0, help="The row of --dataset. Default: 0.")
]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        metavar="DATASET",
        help="Take prompt, reference and columns from its row.",
        autocompletion=completion.datasets,
    ),
]


@commands.command("list")
def list_(as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """List the verifiers that a reward may name.

    Example:
    headrace verifiers list
    """
    records = _listed(connect(gateway))
    if as_json:
        print_json(records)
        return
    table(
        ("NAME", "VERSION", "STATE", "DESCRIPTION"),
        [
            (
                f"[bold]{escape(record['name'])}[/]",
                str(record["versions"][-1]) if record["versions"] else "",
                "ready" if record["available"] else "[red]off[/]",
                escape(record["description"] if record["available"] else record["notice"]),
            )
            for record in records
            if "@" not in record["name"]
        ],
        "no verifiers",
    )


@commands.command()
def show(verifier: Verifier, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Show a verifier and its parameters.

    Example:
    headrace verifiers show math
    """
    records = {record["name"]: record for record in _listed(connect(gateway))}
    if verifier not in records:
        from headrace.nearest import did_you_mean

        raise CliError(f"there is no verifier {verifier!r}{did_you_mean(verifier, records)}")
    record = records[verifier]
    if as_json:
        print_json(record)
        return
    out.print(f"[bold]{escape(record['name'])}[/]  {escape(record['description'])}")
    if record["notice"]:
        out.print(f"[dim]{escape(record['notice'])}[/]")
    if record["versions"]:
        out.print(f"versions {', '.join(map(str, record['versions']))}; the last one is in use")
    out.print()
    table(
        ("PARAMETER", "DEFAULT", "MEANING"),
        [
            (
                f"[bold]{escape(name)}[/]",
                escape(json.dumps(described.get("default"), ensure_ascii=False)),
                escape(described.get("description", "")),
            )
            for name, described in record["params"].get("properties", {}).items()
        ],
        "no parameters",
    )
    out.print(f"\n[dim]in a run: --set 'rewards=[{{verifier: {escape(record['name'])}}}]'[/]")


@commands.command()
def add(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A Python file; FILE:OBJECT names the function or class in it."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Default: the function's or class's, or the file's.")
    ] = None,
    dataset: DatasetOption = None,
    row: Row = 0,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Make a function or class in FILE a verifier.

    A function `def reward(prompt, completion, answer)` returns a number, or True or False. TRL's
    reward functions and classes of docs/rewards.md work too. Functions `test_…` in FILE run first.
    With --dataset, the reference of the row is scored as an answer. A file of the same name is the
    next version. Needs an admin's key, and HEADRACE_VERIFIER_UPLOADS=true of the reward service.

    Example:
    headrace verifiers add short.py --dataset train
    """
    path, object = _file_and_object(file)
    source = _source(path)
    request = {"file": path.name, "source": source, "object": object, "name": name}
    api = connect(gateway)
    made = api.post("/v1/verifiers", json=request)
    reference = f"{made['name']}@{made['version']}"
    _wait_for(api, reference)
    sample = _sample(api, made["name"], dataset, row) if dataset is not None else None
    if as_json:
        print_json({**made, "sample": sample})
        return
    for test in made["tests"]:
        out.print(f"  [green]passed[/] {escape(test['name'])}")
    tests = "" if made["tests"] else "; it has no functions `test_…`"
    out.print(
        f"[green]added[/] [bold]{escape(made['name'])}[/], version {made['version']}{tests}",
        soft_wrap=True,
    )
    if sample is not None:
        out.print("the reference of the row, as an answer:")
        _show_verdict(sample)
    out.print(
        f"[dim]try it: headrace score {escape(made['name'])} 'an answer' --answer 'its reference'\n"
        f"train with it: --set 'rewards=[{{verifier: {escape(made['name'])}}}]'[/]",
        soft_wrap=True,
    )


@commands.command()
def rm(verifier: Verifier, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Remove a verifier that was added, or its version.

    Example:
    headrace verifiers rm short@1
    """
    connect(gateway).delete(f"/v1/verifiers/{verifier}")
    if as_json:
        print_json({"deleted": verifier})
    else:
        out.print(f"[green]removed[/] {escape(verifier)}")


def score(
    verifier: Verifier,
    completion_: Annotated[
        str | None,
        typer.Argument(metavar="COMPLETION", help="The answer to score; - reads it from stdin."),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer",
            metavar="TEXT",
            help="Without COMPLETION: the answer to score. With it: the reference.",
        ),
    ] = None,
    dataset: DatasetOption = None,
    row: ScoredRow = None,
    params: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the verifier. Repeat."),
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Score one answer with a verifier, and show its detail.

    Exit code 1 if the verifier gives no reward.

    Example:
    headrace score math --dataset train --row 3 --answer 'so it is 18'
    headrace score math 'so it is \\boxed{18}' --answer 18
    """
    if row is not None and dataset is None:
        raise CliError(
            f"--row {row} is a row of a dataset: name it with --dataset", code=WRONG_USAGE
        )
    request: dict[str, Any] = {"dataset": dataset, "row": row or 0}
    request["params"] = _params(params or [])
    if completion_ is not None:
        request["completion"] = sys.stdin.read() if completion_ == "-" else completion_
        request["answer"] = answer
    elif answer is not None and dataset is not None:
        request["completion"] = answer
    else:
        raise CliError(
            "name the answer to score: headrace score VERIFIER 'the answer' --answer REFERENCE, or "
            "headrace score VERIFIER --dataset DATASET --row N --answer 'the answer'"
        )
    verdict = connect(gateway).post(f"/v1/verifiers/{verifier}/score", json=request)
    if as_json:
        print_json(verdict)
    else:
        _show_verdict(verdict)
    if verdict["reward"] is None:
        raise typer.Exit(1)


def _listed(api: "Gateway") -> list[dict[str, Any]]:
    return list(api.pages("/v1/verifiers", "verifiers"))


def _file_and_object(file: str) -> tuple[Path, str | None]:
    path, colon, object = file.rpartition(":")
    if colon and path.endswith(".py"):
        return Path(path), object
    return Path(file), None


def _source(path: Path) -> str:
    if path.suffix != ".py":
        raise CliError(f"{path} is no Python file: name a .py file with a function or a class")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8 text") from None


def _wait_for(api: "Gateway", verifier: str) -> None:
    """Wait until the reward service has started again and has the verifier."""
    from headrace.cli.client import Away

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            for record in _listed(api):
                if record["name"] == verifier:
                    if not record["available"]:
                        raise CliError(f"{verifier} was added, and is off: {record['notice']}")
                    return
        except Away:
            # It starts again.
            pass
        time.sleep(LOOK_SECONDS)
    raise CliError(
        f"{verifier} was added, but the reward service has not loaded it in {PATIENCE:g} s: "
        "`headrace logs reward` says why"
    )


def _sample(api: "Gateway", verifier: str, dataset: str, row: int) -> dict[str, Any]:
    """Score the reference of a row as an answer."""
    rows = api.get(f"/v1/datasets/{dataset}/preview", row=row, limit=1)["rows"]
    reference = rows[0]["answer"] if rows else None
    text = reference if isinstance(reference, str) else json.dumps(reference, ensure_ascii=False)
    request = {"completion": text, "dataset": dataset, "row": row}
    verdict: dict[str, Any] = api.post(f"/v1/verifiers/{verifier}/score", json=request)
    return verdict


def _params(settings: list[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise CliError(f"--set {setting} is not KEY=VALUE")
        params[key] = set_value(key, text)
    return params


def _show_verdict(verdict: dict[str, Any]) -> None:
    """Print a verdict, and what the answer was compared with."""
    reward = "no reward" if verdict["reward"] is None else f"reward {verdict['reward']:g}"
    style = STYLES.get(verdict["status"], "yellow")
    out.print(f"[{style}]{escape(verdict['status'])}[/], {reward}")
    if verdict["detail"]:
        out.print(f"  [cyan]detail:[/] {escape(verdict['detail'])}", soft_wrap=True)
    for name, value in verdict["components"].items():
        out.print(f"  [cyan]{escape(name)}:[/] {value:g}")
    if verdict["parts"]:
        out.print(f"  {counted(len(verdict['parts']), 'part')} of the answer scored: -o json lists")
    for name in ("prompt", "answer"):
        if verdict[name] not in ("", None):
            shown = verdict[name]
            text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
            out.print(f"  [cyan]{'reference' if name == 'answer' else name}:[/]")
            print_below(text)
