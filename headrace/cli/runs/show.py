"""`headrace show`: a run in one view, with what its config changes."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import (
    CliError,
    ago,
    escape,
    out,
    print_json,
    size,
    state,
    steps_done,
)
from headrace.cli.runs.chains import find, show_chain
from headrace.cli.runs.config_changes import changes
from headrace.config_keys import dataset_names, value_at

MOST = 80
"""Characters of a value that are shown."""


def show(
    run: Run,
    config: Annotated[
        bool, typer.Option("--config", help="Print its whole config, as YAML for submit.")
    ] = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Show RUN: state, model, dataset, changes to its recipe.

    A chain is shown with its steps. --config prints a file that `headrace submit` takes.

    Example:
    headrace show RUN
    headrace show RUN --config > again.yaml
    """
    api = connect(gateway)
    named = find(api, run)
    record = named.record
    if named.kind == "chain":
        if config:
            raise CliError(f"{record['name']} is a chain: name the run of one of its steps")
        print_json(record) if as_json else show_chain(record)
        return
    if config:
        _print_config(record["config"], as_json)
        return
    changed = changes(record["config"], record["recipe"])
    if as_json:
        listed = None if changed is None else [change._asdict() for change in changed]
        print_json({**record, "changes": listed})
        return
    out.print(f"[bold]{escape(record['name'])}[/]  {record['id']}", soft_wrap=True)
    for label, text in _facts(record):
        out.print(f"  [dim]{label:<11}[/]{text}", soft_wrap=True)
    source = f"recipe {record['recipe']}" if record["recipe"] else "the defaults"
    if changed is None:
        out.print(f"\n[dim]{escape(source)} is not known here: what differs cannot be told[/]")
    else:
        out.print(f"\n[bold]changes to {escape(source)}[/]" + ": none" * (not changed))
        for key, before, after in changed:
            shown = f"{escape(key)}: {_value(before)} → {_value(after)}"
            out.print(f"  {shown}", soft_wrap=True)
    if record["warnings"]:
        out.print("\n[bold]warnings[/]")
        for warning in record["warnings"]:
            out.print(f"  [yellow]{escape(warning)}[/]", soft_wrap=True)
    out.print(f"\n[dim]{escape(_next(record))}[/]", soft_wrap=True)


def _print_config(config: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(config)
        return
    import yaml

    typer.echo(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), nl=False)


def _facts(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a label and a text, as markup, for each fact about a run."""
    reason = f": {escape(record['reason'])}" if record["reason"] else ""
    yield "state", f"{state(record['state'])}{reason}"
    if steps := steps_done(record):
        yield "step", steps
    model = value_at(record["config"], "model.path") or "a new one, from scratch"
    yield "model", escape(str(model))
    datasets = {**dataset_names(record["config"]), **record["dataset_names"]}
    for key, name in datasets.items():
        yield "dataset", escape(name if key == "data.dataset" else f"{name} ({key})")
    verifiers = [reward["verifier"] for reward in record["config"].get("rewards") or ()]
    if verifiers:
        yield "rewards", escape(", ".join(verifiers))
    for key, name in record["from_datasets"].items():
        yield "", f"{escape(key)} comes from dataset {escape(name)}"
    yield "pool", f"{escape(record['pool'])}, priority {record['priority']}"
    yield (
        "created",
        ", ".join(
            f"{word} {ago(record[name])}".removeprefix("created ")
            for name, word in (
                ("created", "created"),
                ("started", "started"),
                ("finished", "ended"),
            )
            if record[name]
        ),
    )
    # An older gateway has no edits.
    for edit in record.get("edits") or ():
        when = "not taken yet" if edit["step"] is None else f"from step {edit['step']}"
        before = "" if edit["before"] is None else f"{edit['before']:g} → "
        values = f"{edit['key']} {before}{edit['after']:g}"
        yield "changed", escape(f"{values}, {when}, by {edit['by']}")
    if record["resume_from"]:
        how = "forked from" if record["is_fork"] else "continues"
        yield how, f"run {record['resume_from']} from step {record['resume_step'] or 0}"
    if record["checkpoint"]:
        yield "checkpoint", f"step {record['committed_step']}: {escape(record['checkpoint'])}"
    if record["disk_bytes"] is not None:
        yield "disk", size(record["disk_bytes"])
    if tags := record.get("tags"):
        yield "tags", escape(", ".join(tags))
    if notes := record.get("notes"):
        yield "notes", escape(notes)
    if record["damage"]:
        yield "damage", f"[red]{escape(record['damage'])}[/]"


def _value(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return escape(shown if len(shown) <= MOST else f"{shown[:MOST]}…")


def _next(record: dict[str, Any]) -> str:
    """Name the commands that a user of this run wants next."""
    id = record["id"]
    if record["state"] == "queued":
        return f"what it waits for: headrace why {id}"
    if record["state"] in ("failed", "cancelled"):
        return f"again, with a key changed: headrace resume {id} --set KEY=VALUE"
    if record["state"] == "succeeded":
        return f"talk to it: headrace chat {id}; take it: headrace export {id} FOLDER"
    return f"follow it: headrace watch {id}; its answers: headrace samples {id}"
