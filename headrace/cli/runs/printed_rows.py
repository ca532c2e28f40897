"""Print what a submission has found, and rows as a model reads them: special characters visible,
trained parts marked."""

import re
from typing import Any

from rich import markup

from headrace import terminal
from headrace.cli.output import escape, out
from headrace.wording import counted

TRAINED = "⟦", "⟧"
"""Brackets around the parts that the loss counts: a file shows no colours."""
FORMS = {"chat_template": ", by the chat template", "plain_text": ", as plain text"}
STYLES = {"correct": "green", "wrong": "red", "error": "red"}
BLANKS = re.compile(r"[^\S\n]+(?=\n|$)")
"""At the end of a line, where nobody would see them."""


def show_checked(answer: dict[str, Any]) -> None:
    """Print what the check of a submission has found: its warnings, the settings of its datasets,
    and the first row as its model reads it."""
    for warning in answer["warnings"]:
        out.print(f"[yellow]warning[/] {escape(warning)}", soft_wrap=True)
    # An older gateway does not say it.
    brought = answer.get("from_datasets") or {}
    for dataset in dict.fromkeys(brought.values()):
        keys = ", ".join(key for key, name in brought.items() if name == dataset)
        out.print(f"[dim]{escape(keys)}: from dataset {escape(dataset)}[/]")
    if preview := answer.get("preview"):
        show_rendering(preview)


def show_rendering(rendering: dict[str, Any]) -> None:
    """Print rows and the notes about them."""
    for row in rendering["rows"]:
        show_row(row, rendering["form"])
    if rendering["note"]:
        out.print(f"[dim]{escape(rendering['note'])}[/]", soft_wrap=True)


def show_row(row: dict[str, Any], form: str | None) -> None:
    """Print one row, its reference, and the verifiers' verdicts on the reference."""
    which = f", {row['answer']}" if row["answer"] else ""
    counts = "" if row["tokens"] is None else f", {counted(row['tokens'], 'token')}"
    if row["trained_tokens"] is not None:
        counts += f", {row['trained_tokens']:,} of them trained {TRAINED[0]}so{TRAINED[1]}"
    by = "" if row["problem"] else FORMS.get(form or "", ", as the chat template gets it")
    out.print(f"[bold]row {row['index']}{which}[/][dim]{counts}{by}[/]", soft_wrap=True)
    if row["problem"]:
        out.print(f"  [red]{escape(row['problem'])}[/]", soft_wrap=True)
    marked = any(piece["trained"] for piece in row["pieces"])
    text = "".join(_piece(piece, marked) for piece in row["pieces"])
    if text:
        out.print(_indented(text, "  "), soft_wrap=True)
    if row["reference"] is not None:
        shown = f"[cyan]reference:[/] {visible(row['reference'])}"
        out.print(_indented(shown, "  "), soft_wrap=True)
    for verdict in row["verdicts"]:
        style = {"correct": "green", "wrong": "red", "error": "red"}.get(
            verdict["status"], "yellow"
        )
        reward = "no reward" if verdict["reward"] is None else f"{verdict['reward']:g}"
        detail = f": {escape(verdict['detail'])}" if verdict["detail"] else ""
        out.print(
            f"  [cyan]{escape(verdict['verifier'])}[/] of the reference as an answer: "
            f"[{style}]{escape(verdict['status'])}[/], {reward}{detail}",
            soft_wrap=True,
        )


def _piece(piece: dict[str, Any], marked: bool) -> str:
    shown = visible(piece["text"])
    if not piece["trained"]:
        return f"[dim]{shown}[/]" if marked else shown
    return f"[green]{TRAINED[0]}{shown}{TRAINED[1]}[/]"


def _indented(text: str, by: str) -> str:
    # The last line end is there as its sign.
    return by + re.sub(r"\n((\[/\])?)$", r"\1", text).replace("\n", f"\n{by}")


def visible(text: str) -> str:
    """Return `text` for rich with every character visible. `⏎` stands before a new line, `→` before
    a tab, `·` for a blank at the end of a line. Control characters are written as in JSON."""
    seen = BLANKS.sub(lambda blanks: "·" * len(blanks[0]), terminal.visible(text))
    return str(markup.escape(seen.replace("\t", "→\t").replace("\n", "⏎\n")))
