"""`headrace eval`, `headrace compare`: how well a model answers a dataset, and against another."""

import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.options import AsJson, Dataset, GatewayURL, Priority, connect, pool_of
from headrace.cli.output import (
    FINAL,
    INTERRUPTED,
    CliError,
    err,
    escape,
    out,
    print_json,
    state,
)
from headrace.cli.runs.overrides import Set, overrides_from
from headrace.wording import counted, predicate

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

POLL_SECONDS = 1.0
SHOWN = 10
"""Changed rows that a comparison lists."""

Against = Annotated[
    str | None,
    typer.Option(
        metavar="OTHER",
        help="Compare row by row: with another evaluation, or with another MODEL, which is then "
        "evaluated with the same options.",
    ),
]


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run, RUN@STEP for its checkpoint of a step, a folder, a hub name (org/name).",
        ),
    ],
    dataset: Dataset,
    samples: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Answers of each row. Default: 1.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Only the first ones. Default: all.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=10, help="Default: 0 for one answer a row, else 1.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer. Default: the run's, or 512.")
    ] = None,
    category: Annotated[
        str | None, typer.Option(metavar="COL", help="Results by the values of this column, too.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="What scores answers. Default: the dataset's, or the run's.")
    ] = None,
    against: Against = None,
    set_: Set = None,
    name: Annotated[str | None, typer.Option(help="Default: MODEL on DATASET.")] = None,
    pool: Annotated[
        str | None, typer.Option(help="Whose workers answer. Default: HEADRACE_POOL, or `default`.")
    ] = None,
    priority: Priority = 0,
    wait: Annotated[bool, typer.Option(help="Wait for the figures.")] = True,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Evaluate MODEL on DATASET by the pool's workers.

    It waits for its turn in the pool's queue. Exit code 1 if it fails or is cancelled.

    Example:
    headrace eval RUN test --samples 8
    """
    api = connect(gateway)
    given = {
        "samples": samples,
        "rows": rows,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "category": category,
        "verifier": verifier,
        "name": name,
    }
    request: dict[str, Any] = {
        "dataset": dataset,
        "pool": pool_of(pool),
        "priority": priority,
        "config": overrides_from(set_ or []),
        **{key: value for key, value in given.items() if value is not None},
    }
    mine = api.post("/v1/evaluations", json={**request, "model": _absolute(model)})
    other = _other(api, against, request, mine) if against else None
    if not as_json:
        config = api.get(f"/v1/runs/{mine['run']['id']}")["config"]["evaluation"]
        err.print(f"[dim]{how_sampled(config, temperature is None)}[/]", soft_wrap=True)
    if not wait:
        _queued(api, mine, other, as_json)
        return
    ids = [evaluation["run"]["id"] for evaluation in (mine, other) if evaluation is not None]
    mine, *rest = [_followed(api, id, as_json) for id in ids]
    _shown(api, mine, rest[0] if rest else None, as_json)


def how_sampled(config: dict[str, Any], is_default: bool) -> str:
    """Describe how an evaluation with this config samples. `is_default`: its temperature was not
    given."""
    by_default = ", which --temperature changes" if is_default else ""
    temperature = config["temperature"] or 0
    return (
        f"{counted(config['samples'], 'answer')} a row at temperature {temperature:g}{by_default}"
    )


def compare(
    evaluation: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run, for its newest evaluation, or RUN/ID (see `headrace evaluations RUN`).",
        ),
    ],
    other: Annotated[
        str,
        typer.Argument(metavar="OTHER", help="The same, on the same dataset."),
    ],
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Compare two evaluations row by row, with a paired test.

    Example:
    headrace compare RUN OTHER
    """
    api = connect(gateway)
    run, _, id = evaluation.partition("/")
    if not id:
        ended = api.pages(f"/v1/runs/{run}/evaluations", "evaluations")
        id = next((record["id"] for record in ended if record["state"] == "done"), "")
    if not id:
        raise CliError(f"run {run} has no evaluation that is done")
    comparison = api.get(f"/v1/runs/{run}/evaluations/{id}/comparison", against=other, limit=SHOWN)
    if as_json:
        print_json(comparison)
        return
    out.print(_named(api, comparison["evaluation"]), soft_wrap=True)
    _print_comparison(api, comparison)


def _absolute(model: str) -> str:
    """Return a folder as an absolute path, because the gateway has another working folder."""
    from pathlib import Path

    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model


def _other(
    api: "Gateway", against: str, request: dict[str, Any], mine: dict[str, Any]
) -> dict[str, Any]:
    """Return the evaluation to compare with. It exists, or is queued with the options of `mine`."""
    from headrace.cli.client import NotFound

    names = ("dataset", "pool", "priority", "rows")
    kept: dict[str, Any] = {key: request[key] for key in names if key in request}
    asked: dict[str, Any] = {**kept, "model": _absolute(against), "like": mine["run"]["id"]}
    try:
        try:
            evaluation: dict[str, Any] = api.get(f"/v1/evaluations/{quote(against, safe='')}")
            if evaluation["run"]["state"] in ("failed", "cancelled"):
                raise CliError(
                    f"--against {against}: it {predicate(evaluation['run']['state'])}: take "
                    "another, or name its model"
                )
        except NotFound:
            evaluation = api.post("/v1/evaluations", json=asked)
        return evaluation
    except BaseException:
        # Nobody would read the half of a comparison.
        api.post(f"/v1/runs/{mine['run']['id']}/cancel")
        raise


def _queued(
    api: "Gateway", mine: dict[str, Any], other: dict[str, Any] | None, as_json: bool
) -> None:
    if as_json:
        print_json({"evaluation": mine, "against": other})
        return
    for evaluation in (mine, other):
        if evaluation is not None:
            run = evaluation["run"]
            out.print(f"[green]queued[/] [bold]{escape(run['name'])}[/] as {run['id']}")
    then = api.command("evaluations", mine["run"]["id"])
    if other is not None:
        then = api.command("compare", mine["run"]["id"], other["run"]["id"])
    out.print(f"[dim]once they are done: {escape(then)}[/]", soft_wrap=True)


def _followed(api: "Gateway", id: str, as_json: bool) -> dict[str, Any]:
    """Wait until an evaluation ends, with its progress on stderr. Raises CliError unless it
    succeeds."""
    printed = ""
    try:
        while True:
            evaluation: dict[str, Any] = api.get(f"/v1/evaluations/{id}")
            run = evaluation["run"]
            if run["state"] in FINAL:
                break
            if not as_json and (line := _progress(evaluation)) != printed:
                printed = line
                err.print(f"[dim]{escape(line)}[/]")
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        look, end = api.command("evaluations", id), api.command("cancel", id)
        err.print(
            f"[dim]it goes on; look at it with `{escape(look)}`, end it with `{escape(end)}`[/]",
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    if run["state"] != "succeeded":
        raise CliError(
            f"evaluation {run['name']} ({id}) {predicate(run['state'])}: {run['reason']}; "
            f"`{api.command('resume', id)}` goes on with the rows that are not answered"
        )
    return evaluation


def _progress(view: dict[str, Any]) -> str:
    run, evaluation = view["run"], view["evaluation"]
    reason = f": {run['reason']}" if run["reason"] else ""
    if evaluation is None or not evaluation["answered"]:
        return f"{run['name']} ({run['id']}) is {run['state']}{reason}"
    tenth = max(1, evaluation["rows"] // 10)
    answered = evaluation["answered"] // tenth * tenth
    return f"{run['name']}: {answered} of {counted(evaluation['rows'], 'row')} answered{reason}"


def _shown(
    api: "Gateway", mine: dict[str, Any], other: dict[str, Any] | None, as_json: bool
) -> None:
    """Print a finished evaluation, and its comparison with `other`."""
    comparison = None
    if other is not None:
        place = f"/v1/runs/{mine['run']['id']}/evaluations/{mine['evaluation']['id']}/comparison"
        comparison = api.get(place, against=other["run"]["id"], limit=SHOWN)
    if as_json:
        print_json({"evaluation": mine, "comparison": comparison})
        return
    _print_evaluation(api, mine)
    if comparison is not None:
        _print_comparison(api, comparison)


def _with_interval(metrics: dict[str, float], name: str) -> str:
    interval = ""
    if f"{name}_low" in metrics:
        interval = f" [{metrics[f'{name}_low']:.3f}, {metrics[f'{name}_high']:.3f}]"
    return f"{metrics[name]:.3f}{interval}"


def _print_evaluation(api: "Gateway", view: dict[str, Any]) -> None:
    run, evaluation = view["run"], view["evaluation"]
    out.print(
        f"[bold]{escape(run['name'])}[/] ({run['id']}) {state(run['state'])} "
        f"[dim]{escape(run['reason'])}[/]"
    )
    metrics = evaluation["metrics"]
    lines = [
        (name, _with_interval(metrics, name)) for name in ("accuracy", "reward") if name in metrics
    ]
    lines += [
        (f"pass@{name.rpartition('_')[2]}", f"{value:.3f}")
        for name, value in metrics.items()
        if name.startswith("pass_at_")
    ]
    asked = f"{counted(evaluation['rows'], 'row')}, {counted(evaluation['samples'], 'answer')} each"
    # An older gateway does not tell the temperature.
    if (temperature := evaluation.get("temperature")) is not None:
        asked += f", at temperature {temperature:g}"
    lines.append(("rows", asked))
    if failed := int(metrics.get("failed", 0)):
        lines.append(("not answered", f"{counted(failed, 'row')}: an unanswered row is wrong"))
    if "tokens_mean" in metrics:
        cut = f", {metrics['truncated']:.1%} of the answers cut off"
        length = f"{metrics['tokens_mean']:.0f} tokens on average, 95 % up to "
        lines.append(("length", f"{length}{metrics['tokens_p95']:.0f}{cut}"))
    for name, value in lines:
        out.print(f"  {name:<14}{escape(value)}")
    for name, figures in evaluation["categories"].items():
        out.print(f"  [dim]{escape(name)}[/]: {escape(_of_category(figures))}")
    answers = api.command("evaluations", run["id"], evaluation["id"])
    out.print(f"[dim]all answers: {escape(answers)}[/]", soft_wrap=True)


def _of_category(figures: dict[str, float]) -> str:
    name = "accuracy" if "accuracy" in figures else "reward"
    return f"{name} {figures[name]:.3f} on {counted(int(figures['rows']), 'row')}"


def _named(api: "Gateway", evaluation: dict[str, Any]) -> str:
    """Name an evaluation by its run and step, in rich's markup."""
    run = api.get(f"/v1/runs/{evaluation['run']}")
    # A run that only evaluates has no steps.
    step = f" at step {evaluation['step']}" if run["max_steps"] != 0 else ""
    return f"[bold]{escape(run['name'])}[/] ({run['id']}){step}"


def _print_comparison(api: "Gateway", view: dict[str, Any]) -> None:
    comparison = view["comparison"]
    tests = {"mcnemar": "McNemar's exact test", "sign_flip": "sign-flip permutation test"}
    out.print(
        f"\nagainst {_named(api, view['against'])}, on {counted(comparison['rows'], 'row')}: "
        f"{comparison['metric']} {comparison['value']:.3f} against {comparison['other']:.3f}",
        soft_wrap=True,
    )
    out.print(
        f"  difference    {comparison['difference']:+.3f} "
        f"[{comparison['low']:+.3f}, {comparison['high']:+.3f}]  "
        f"p = {comparison['p']:.3g} ({tests[comparison['test']]})",
        markup=False,
    )
    out.print(f"  rows that are better: {view['better']}, that are worse: {view['worse']}")
    if view["differ"]:
        out.print(f"  [yellow]they also differ in[/] {escape(', '.join(view['differ']))}")
    for row in comparison["changed"]:
        colour = "green" if row["value"] > row["other"] else "red"
        out.print(f"  [{colour}]row {row['row']}[/]  {row['other']:.2f} → {row['value']:.2f}")
    left = view["better"] + view["worse"] - len(comparison["changed"])
    if left > 0:
        out.print(f"  [dim]and {counted(left, 'more row')}[/]")
