"""What `headrace datasets` prints about a dataset."""

from collections.abc import Iterator
from typing import Any

from headrace.cli.output import escape, out, print_json
from headrace.wording import counted


def print_added(record: dict[str, Any], as_json: bool) -> None:
    """Print the answer to an upload."""
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


def findings_in_words(findings: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield sentences about the rows of a dataset, each with whether it is a warning."""
    if findings["problem"]:
        yield findings["problem"], True
    counts = findings["counts"]
    if findings["state"] == "counting":
        yield "its rows are being counted: show it again in a moment", False
    if counts is not None:
        yield _lengths("prompts have", counts["prompts"]), False
        if counts["answers"] is not None:
            yield _lengths("answers have", counts["answers"]), False
            if missing := findings["rows"] - counts["answers"]["rows"]:
                yield f"{counted(missing, 'row has', 'rows have')} no answer", False
    if tokens := findings["tokens"]:
        looked_at = f" in {tokens['rows']:,} rows" if tokens["rows"] < findings["rows"] else ""
        yield (
            f"prompts have {tokens['min']:,} to {tokens['max']:,} tokens{looked_at}, "
            f"median {tokens['median']:,}, for {tokens['model']}",
            False,
        )
    if counts is not None:
        yield from _repetitions(counts)
    for references in findings["references"]:
        yield from _references(references, findings["rows"])


def _lengths(has: str, lengths: dict[str, Any]) -> str:
    return (
        f"{has} {lengths['min']:,} to {lengths['max']:,} characters (row "
        f"{lengths['longest_row']} is the longest), median {lengths['median']:,}, 95 % have "
        f"{lengths['p95']:,} or less"
    )


def _repetitions(counts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    for key, what in (
        ("duplicates", "the prompt and answer of an earlier row"),
        ("other_answers", "the prompt of an earlier row, and another answer"),
    ):
        repeated = counts[key]
        if repeated["rows"]:
            named = ", ".join(f"{each['row']} as {each['first']}" for each in repeated["examples"])
            more = ", …" if repeated["rows"] > len(repeated["examples"]) else ""
            has = counted(repeated["rows"], "row has", "rows have")
            yield f"{has} {what} (row {named}{more})", True


def _references(references: dict[str, Any], rows: int) -> Iterator[tuple[str, bool]]:
    read, name = references["rows"], references["verifier"]
    of = f"{rows:,}" if read == rows else f"the {read:,} that were read of {rows:,}"
    if references["unreadable"]:
        examples = (f"row {each['row']}: {each['reason']}" for each in references["examples"])
        yield (
            f"verifier {name!r} cannot read {references['unreadable']:,} of {of} references "
            f"({'; '.join(examples)})",
            True,
        )
    elif references["state"] == "counted":
        yield f"verifier {name!r} can read all references", False
    if references["state"] == "counting":
        yield f"verifier {name!r} reads further references: show it again in a moment", False
    if references["problem"]:
        yield f"not all references were read by {name!r}: {references['problem']}", True
    if references["remark"]:
        yield references["remark"], True
