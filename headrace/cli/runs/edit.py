"""`headrace set` and `tag`: change a run."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import CliError, escape, out, print_json
from headrace.config_keys import CONFIG_KEYS, SFT_KEYS, edited_keys
from headrace.nearest import did_you_mean

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

TEXTS = ("name", "notes")


def set_run(
    run: Run,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="name, notes, priority, or of a run that waits or trains: training.max_steps, "
            "rollout.max_staleness, evaluation.every or validation.every, "
            "training.checkpoint_every, optimizer.lr.",
        ),
    ],
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Change RUN while it waits or trains, from its next step on.

    Example:
    headrace set RUN training.max_steps=300 optimizer.lr=5e-7
    headrace set RUN priority=10
    """
    patch = dict(_parsed(value) for value in values)
    _send(connect(gateway), run, patch, as_json)


def tag(
    run: Run,
    tags: Annotated[
        list[str],
        typer.Argument(metavar="TAG...", help="Tags to add; with --remove, tags to remove."),
    ],
    remove: Annotated[bool, typer.Option("--remove", help="Remove these tags.")] = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Add tags to RUN, or remove tags.

    Example:
    headrace tag RUN baseline "paper 2"
    headrace tag RUN baseline --remove
    """
    api = connect(gateway)
    present = api.get(f"/v1/runs/{run}")["tags"]
    if missing := [name for name in tags if remove and name not in present]:
        raise CliError(
            f"run {run} has no tag {missing[0]!r}; it has {', '.join(present) or 'none'}"
        )
    wanted = [name for name in present if name not in tags] if remove else [*present, *tags]
    _send(api, run, {"tags": wanted}, as_json)


def _parsed(value: str) -> tuple[str, Any]:
    """Parse KEY=VALUE. A key is one of the config, or its last part."""
    name, equals, text = value.partition("=")
    both = (*CONFIG_KEYS.items(), *SFT_KEYS.items())
    names: dict[str, str] = {place: key for key, place in both}
    key, keys = names.get(name, name), (*TEXTS, "priority", *CONFIG_KEYS)
    if not equals or key not in keys:
        known = ", ".join((*TEXTS, "priority", *names))
        hint = did_you_mean(name, (*keys, *names))
        way_out = "write KEY=VALUE" if key in keys else f"it can be one of {known}"
        raise CliError(f"{value!r}: {way_out}{hint}")
    if key in TEXTS:
        return key, text
    try:
        return key, float(text) if key == "lr" else int(text)
    except ValueError:
        kind = "a number" if key == "lr" else "a whole number"
        raise CliError(f"{name}: must be {kind}, not {text!r}") from None


def _send(api: "Gateway", run: str, patch: dict[str, Any], as_json: bool) -> None:
    record = api.patch(f"/v1/runs/{run}", json=patch)
    if as_json:
        print_json(record)
        return
    name = f"{escape(record['name'])} ({record['id']})"
    for key in patch:
        place = edited_keys(record["kind"]).get(key)
        if place is None:
            shown = ", ".join(record[key]) if key == "tags" else str(record[key])
            out.print(f"{name}: {key} {escape(shown)}", soft_wrap=True)
            continue
        edits = [edit for edit in record["edits"] if edit["key"] == key]
        when = ""
        if edits and edits[-1]["step"] is None:
            when = " from its next step on"
        out.print(f"{name}: {place} {patch[key]:g}{when}", soft_wrap=True)
