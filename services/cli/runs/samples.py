"""`headrace samples`: answers that a run was trained on, with what they earned."""

from typing import Annotated, Any

import typer
from rich.text import Text

from services.cli.options import AsJson, GatewayURL, Run, connect
from services.cli.output import out, print_below, print_json
from services.runtime.terminal import one_line


def samples(
    run: Run,
    step: Annotated[int | None, typer.Option(min=1, help="Only of this step.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Show some of the answers RUN was trained on, with their rewards and the verifiers' reasons:
    the newest ones, the last step at the end (with --json first). For a run that has failed, or
    has not trained yet, also show the newest judged answers."""
    api = connect(gateway)
    found = api.get(f"/v1/runs/{run}/samples", step=step, limit=limit)
    if as_json:
        print_json(found)
        return
    for one in reversed([*found["judged"], *found["samples"]]):
        show(one)
    if not found["samples"] and not found["judged"]:
        of = f" of step {step}" if step else ""
        said = f"no answers{of}: they are kept when they are judged"
        if api.get(f"/v1/runs/{run}")["kind"] == "sft":
            said = "a supervised run samples no answers: `headrace watch` and `headrace report` "
            said += "show its validation, and `headrace eval` samples some"
        out.print(f"[dim]{said}[/]", soft_wrap=True)


def show(one: dict[str, Any]) -> None:
    """Print one answer."""
    facts = [
        f"advantage {number(one['advantage'])}",
        f"{one['tokens']} tokens, {one['finish_reason']}",
        f"{origin(one)}, task {one['task']}",
        f"version {', '.join(map(str, one['versions'])) or '–'}",
    ]
    reward = f"reward {number(one['reward'])} {one['status']}"
    begin = one_line(f"step {one['step']}  {reward}" if one["step"] else f"judged  {reward}")
    head = Text.assemble((begin, "bold"), "  ", one_line("  ".join(facts)))
    out.print(head, soft_wrap=True)
    if len(one["components"]) > 1:
        parts = (f"{name} {number(value)}" for name, value in one["components"].items())
        out.print(Text("  " + "  ".join(map(one_line, parts))), soft_wrap=True)
    show_reasons(one)
    for name in ("prompt", "completion", "reference"):
        if one[name]:
            out.print(Text(f"  {name}", "dim"))
            print_below(one[name])
    out.print()


def show_reasons(one: dict[str, Any]) -> None:
    """Print what each verifier says of an answer."""
    for name, reason in one["reasons"].items():
        out.print(Text(one_line(f"  {name}: {reason}"), "italic"), soft_wrap=True)


def origin(one: dict[str, Any]) -> str:
    """Where its prompt came from."""
    if one["own"] is None:
        return f"row {one['row']}"
    return f"a client's prompt {one['own']!r}" if one["own"] else "a client's prompt"


def number(value: float | None) -> str:
    """Format a number with three decimals; a missing number is –."""
    return "–" if value is None else f"{value:.3f}"
