"""`headrace preview`: rows of a dataset as a model will read them."""

from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson, Dataset, GatewayURL, connect
from headrace.cli.output import escape, out, print_json
from headrace.cli.runs.overrides import Set
from headrace.cli.runs.printed_rows import show_checked, show_rendering
from headrace.cli.runs.submit import run_request
from headrace.wording import counted


def preview(
    dataset: Dataset,
    model: Annotated[
        str | None,
        typer.Option(help="A folder, a hub name, or run:RUN. Default: the recipe's."),
    ] = None,
    recipe: Annotated[
        str, typer.Option(metavar="RECIPE", help="A recipe or a YAML file, as submit takes them.")
    ] = "grpo",
    set_: Set = None,
    rows: Annotated[int, typer.Option(help="Rows to show.", min=1, max=50)] = 3,
    start: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Show rows of DATASET as a model will read them.

    That is the whole prompt with its special tokens, the parts that supervised training learns, and
    what the verifier makes of the reference itself. ⏎ stands for a new line, · for a blank at the
    end of a line, → for a tab.

    Example:
    headrace preview train --model /models/mine --rows 5
    """
    settings = [f"data.dataset={dataset}", *(set_ or [])]
    if model is not None:
        settings.append(f"model.path={model}")
    request = run_request(recipe, settings) | {"rows": rows, "start": start}
    answer: dict[str, Any] = connect(gateway).post("/v1/preview", json=request)
    if as_json:
        print_json(answer)
        return
    show_checked({**answer, "preview": None})
    show_rendering(answer)
    if not answer["rows"]:
        total = counted(answer["total"], "row")
        out.print(f"[dim]{escape(dataset)} has {total}: none from {start} on[/]")
