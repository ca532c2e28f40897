"""The outcomes of the recipes' runs as the tables and the plot of docs/recipes.md."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from bench.recipes.trials import RISE, Outcome, Part, Trial
from bench.results import RESULTS

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PLOT = DOCS / "recipes.md", DOCS / "images/staleness.png"
KEPT = RESULTS / "recipes.kept.json"
BEGIN, END = "<!-- python -m bench.recipes --publish writes from here -->", "<!-- to here -->"
HEADINGS: dict[Part, str] = {
    "recipes": "| Recipe | η | Steps | Held-out reward before | After, by seed | Least rise | "
    f"{RISE:g} or more |\n| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    "staleness": "| Objective | η | Staleness, mean | Steps | Held-out reward before | After, by "
    "seed | Last ten steps |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
}


def newest(trials: Iterable[Trial], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The newest outcome of each trial, in the order of the trials; all from the same weights as
    the newest one, since others do not compare."""
    by_key = {each.key: each for each in outcomes if each.start == outcomes[-1].start}
    return [by_key[trial.key] for trial in trials if trial.key in by_key]


def by_name(outcomes: Iterable[Outcome], part: Part) -> dict[str, list[Outcome]]:
    """The outcomes of one part, by objective, in the order of the seeds."""
    names: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: o.seed):
        if outcome.part == part:
            names.setdefault(outcome.name, []).append(outcome)
    return names


def tables(outcomes: Sequence[Outcome]) -> str:
    """Both tables, in Markdown, without those that have no rows."""
    found = []
    for part, heading in HEADINGS.items():
        names = by_name(outcomes, part)
        ordered = sorted(names) if part == "recipes" else list(names)
        if rows := [_row(part, name, names[name]) for name in ordered]:
            found.append("\n".join([heading, *rows]) + "\n")
    return "\n".join(found)


def _row(part: Part, name: str, outcomes: Sequence[Outcome]) -> str:
    """One recipe or objective, all its seeds."""
    first, rises = outcomes[0], [outcome.after - outcome.before for outcome in outcomes]
    cells: tuple[object, ...]
    before = f"{fmean(o.before for o in outcomes):.2f}"
    after = ", ".join(f"{o.after:.2f}" for o in outcomes)
    if part == "recipes":
        learned = f"{sum(rise >= RISE for rise in rises)} of {len(outcomes)}"
        cells = (f"`{name}`", first.eta, first.steps, before, after, f"{min(rises):+.2f}", learned)
    else:
        staleness = f"{fmean(o.staleness for o in outcomes):.1f}"
        last = f"{fmean(fmean(o.rewards[-10:]) for o in outcomes):.2f}"
        cells = (name, first.eta, staleness, first.steps, before, after, last)
    return f"| {' | '.join(map(str, cells))} |"


def publish(trials: Iterable[Trial], outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes of `trials` to KEPT, their tables into PAGE, the plot to PLOT."""
    every = newest(trials, outcomes)
    lines = ",\n".join(json.dumps(asdict(outcome), ensure_ascii=False) for outcome in every)
    KEPT.write_text(f"[\n{lines}\n]\n")
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(every)}\n{END}{after}")
    plot(by_name(every, "staleness"), PLOT)


def plot(objectives: dict[str, list[Outcome]], path: Path) -> None:
    """The reward by step: for each objective the mean of its seeds, and their range, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, outcomes in objectives.items():
        curves = [smooth(outcome.rewards) for outcome in outcomes]
        columns = list(zip(*curves, strict=False))
        steps = range(1, len(columns) + 1)
        (line,) = axes.plot(steps, [fmean(column) for column in columns], label=name)
        low, high = [min(column) for column in columns], [max(column) for column in columns]
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15)
    axes.set(xlabel="step", ylabel="mean reward, over 5 steps", ylim=(0, 1))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """The mean of each value and those before it, `width` at most."""
    return [fmean(values[max(0, i - width + 1) : i + 1]) for i in range(len(values))]
