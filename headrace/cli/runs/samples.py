"""`headrace samples`: answers that a run was trained on, with what they earned."""

from typing import Annotated, Any

import typer
from rich.text import Text

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import escape, out, print_below, print_json
from headrace.cli.runs.chains import run_of
from headrace.terminal import one_line
from headrace.wording import counted


def samples(
    run: Run,
    step: Annotated[int | None, typer.Option(min=1, help="Only of this step.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Show answers of RUN, with rewards and verifiers' reasons.

    These are some of the newest answers that it was trained on, the last step at the end (with
    --json first). For a run that has failed, or has not trained yet, also the newest judged
    answers. For a chain, those of the present run.

    Example:
    headrace samples RUN --step 10 --limit 5
    """
    api = connect(gateway)
    record = run_of(api, run)
    answers = api.get(f"/v1/runs/{record['id']}/samples", step=step, limit=limit)
    if as_json:
        print_json(answers)
        return
    for answer in reversed([*answers["judged"], *answers["samples"]]):
        show(answer)
    if not answers["samples"] and not answers["judged"]:
        out.print(f"[dim]{escape(answers['none_because'])}[/]", soft_wrap=True)


def show(sample: dict[str, Any]) -> None:
    """Print one answer."""
    facts = [
        f"advantage {number(sample['advantage'])}",
        f"{counted(sample['tokens'], 'token')}, {sample['finish_reason']}",
        f"{origin(sample)}, task {sample['task']}",
        f"version {', '.join(map(str, sample['versions'])) or '–'}",
    ]
    reward = f"reward {number(sample['reward'])} {sample['status']}"
    begin = one_line(f"step {sample['step']}  {reward}" if sample["step"] else f"judged  {reward}")
    head = Text.assemble((begin, "bold"), "  ", one_line("  ".join(facts)))
    out.print(head, soft_wrap=True)
    if len(sample["components"]) > 1:
        parts = (f"{name} {number(value)}" for name, value in sample["components"].items())
        out.print(Text("  " + "  ".join(map(one_line, parts))), soft_wrap=True)
    show_reasons(sample)
    for name in ("prompt", "completion", "reference"):
        if sample[name]:
            out.print(Text(f"  {name}", "dim"))
            print_below(sample[name])
    out.print()


def show_reasons(sample: dict[str, Any]) -> None:
    """Print what each verifier says of an answer."""
    for name, reason in sample["reasons"].items():
        out.print(Text(one_line(f"  {name}: {reason}"), "italic"), soft_wrap=True)


def origin(sample: dict[str, Any]) -> str:
    """Describe the source of an answer's prompt."""
    if sample["own"] is None:
        return f"row {sample['row']}"
    return f"a client's prompt {sample['own']!r}" if sample["own"] else "a client's prompt"


def number(value: float | None) -> str:
    """Format a number with three decimals; a missing number is –."""
    return "–" if value is None else f"{value:.3f}"
