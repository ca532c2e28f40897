"""`headrace evaluations`: evaluations of a run, with their figures, and the answers of one."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import CliError, out, print_below, print_json, table
from headrace.cli.runs.chains import run_of
from headrace.cli.runs.samples import number, show_reasons
from headrace.metric_rows import in_short
from headrace.terminal import one_line
from headrace.wording import counted


class RowVerdict(StrEnum):
    """The verdict on a row, from all of its answers."""

    CORRECT = "correct"
    WRONG = "wrong"
    MIXED = "mixed"
    UNSCORED = "unscored"


def evaluations(
    run: Run,
    evaluation: Annotated[
        str | None,
        typer.Argument(
            help="Show the answers of this one: its id, or the name of a held-out set for the "
            "newest.",
            show_default=False,
        ),
    ] = None,
    verdict: Annotated[
        RowVerdict | None,
        typer.Option(help="Only rows whose answers are all, or none, or in part so."),
    ] = None,
    category: Annotated[str | None, typer.Option(help="Only rows of this category.")] = None,
    row: Annotated[int | None, typer.Option(min=0, help="Only this row of the dataset.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many rows.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(help="The rows behind these: the end of each page names it.")
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """List the evaluations of RUN, or show the answers of one.

    For a chain, those of the present run.

    Example:
    headrace evaluations RUN
    headrace evaluations RUN test --verdict wrong
    """
    api = connect(gateway)
    run = run_of(api, run)["id"]
    listed = list(api.pages(f"/v1/runs/{run}/evaluations", "evaluations"))
    if evaluation is None:
        if as_json:
            print_json(listed)
        else:
            _list(listed)
        return
    chosen = next(
        (record for record in listed if evaluation in (record["id"], record["name"])), None
    )
    if chosen is None:
        known = ", ".join(record["id"] for record in listed[:10]) or "none yet"
        raise CliError(f"run {run} has no evaluation {evaluation!r}; it has {known}")
    answers = api.get(
        f"/v1/runs/{run}/evaluations/{chosen['id']}/answers",
        verdict=verdict.value if verdict else None,
        category=category,
        row=row,
        limit=limit,
        cursor=cursor,
    )
    if as_json:
        print_json(answers)
        return
    for answered in answers["rows"]:
        _show(answered)
    shown = f"{len(answers['rows'])} of {counted(answers['total'], 'row')}"
    more = f"; the next ones: --cursor {answers['next']}" if answers["next"] else ""
    out.print(Text(f"{described(answers['evaluation'])}: {shown}{more}"), soft_wrap=True)


def described(evaluation: dict[str, Any]) -> str:
    """Describe an evaluation in one line."""
    rows = f"{evaluation['answered']}/{counted(evaluation['rows'], 'row')}"
    text = f"{evaluation['id']}  step {evaluation['step']}  {rows}"
    figures = evaluation["metrics"]
    name = "accuracy" if "accuracy" in figures else "reward"
    if name not in figures:
        return one_line(f"{text}  {evaluation['state']}  {evaluation['reason']}".rstrip())
    text = f"{text}  {name} {figures[name]:.3f}"
    if f"{name}_low" in figures:
        text += f" [{figures[f'{name}_low']:.3f}, {figures[f'{name}_high']:.3f}]"
    if (temperature := evaluation.get("temperature")) is not None:
        text += f"  temperature {temperature:g}"
    passed = [f"{key.replace('pass_at_', 'pass@')} {figures[key]:.3f}"
              for key in in_short(figures) if key.startswith("pass_at_")]  # fmt: skip
    if "tokens_mean" in figures:
        passed.append(
            f"{figures['tokens_mean']:.0f} tokens on average (p95 {figures['tokens_p95']:.0f}, "
            f"{figures['truncated']:.0%} truncated)"
        )
    return one_line("  ".join([text, *passed]))


def _list(evaluations: list[dict[str, Any]]) -> None:
    for evaluation in evaluations:
        out.print(Text(described(evaluation)), soft_wrap=True)
        if evaluation["categories"]:
            rows = [
                (
                    f"  {of['rows']:.0f}",
                    number(of.get("accuracy")),
                    number(of.get("reward")),
                    escape(one_line(name)),
                )
                for name, of in evaluation["categories"].items()
            ]
            table(("  ROWS", "ACCURACY", "REWARD", "CATEGORY"), rows, "")
    if not evaluations:
        out.print("[dim]no evaluations: the run's config has none, or none is due yet[/]")


def _show(row: dict[str, Any]) -> None:
    category = f"  {row['category']}" if row["category"] is not None else ""
    out.print(Text(one_line(f"row {row['row']}{category}  reference {row['reference']!r}"), "bold"))
    if row["error"]:
        out.print(Text(one_line(f"  not answered: {row['error']}")), soft_wrap=True)
        return
    out.print(Text("  prompt", "dim"))
    print_below(row["prompt"])
    for sample in row["samples"]:
        cut = ", truncated" if sample["truncated"] else ""
        head = f"  reward {number(sample['reward'])} {sample['status']}, "
        head += counted(sample["tokens"], "token")
        out.print(Text(one_line(head + cut), "dim"), soft_wrap=True)
        show_reasons(sample)
        print_below(sample["text"])
    out.print()
