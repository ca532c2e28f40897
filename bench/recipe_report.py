"""From the outcomes of runs to docs/recipes.md: its tables, its plot, and the figures beside it."""

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from bench.kept import RESULTS
from bench.recipe_trials import RISE, Outcome, Part, Trial

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/recipes.md"
PLOT = ROOT / "docs/images/staleness.png"
KEPT = RESULTS / "recipes.kept.json"
BEGIN, END = "<!-- python -m bench.recipes --publish writes from here -->", "<!-- to here -->"


def found(trials: Iterable[Trial], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The newest outcome of each trial, in the order of the trials; all from the same weights as
    the newest one, since others do not compare."""
    by_key = {each.key: each for each in outcomes if each.start == outcomes[-1].start}
    return [by_key[trial.key] for trial in trials if trial.key in by_key]


def by_name(outcomes: Iterable[Outcome], part: Part) -> dict[str, list[Outcome]]:
    """The outcomes of one part, of each objective one for each seed."""
    names: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.part == part:
            names.setdefault(outcome.name, []).append(outcome)
    return {name: sorted(every, key=lambda o: o.seed) for name, every in names.items()}


def tables(outcomes: Sequence[Outcome]) -> str:
    """Both tables, in Markdown."""
    recipes, staleness = by_name(outcomes, "recipes"), by_name(outcomes, "staleness")
    lines: list[str] = []
    if recipes:
        lines += [
            "| Recipe | η | Steps | Held-out reward before | After, by seed | Least rise | "
            f"{RISE:g} or more |",
            "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
            *(recipe_row(name, every) for name, every in sorted(recipes.items())),
        ]
    if staleness:
        lines += [
            *([""] if lines else []),
            "| Objective | η | Staleness, mean | Steps | Held-out reward before | After, by seed | "
            "Last ten steps |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *(staleness_row(name, every) for name, every in staleness.items()),
        ]
    return "\n".join(lines) + "\n"


def recipe_row(name: str, outcomes: Sequence[Outcome]) -> str:
    """One recipe, all its seeds."""
    rises = [outcome.rise for outcome in outcomes]
    learned = sum(rise >= RISE for rise in rises)
    return cells(
        f"`{name}`",
        f"{outcomes[0].eta}",
        f"{outcomes[0].steps}",
        f"{fmean(o.before for o in outcomes):.2f}",
        ", ".join(f"{o.after:.2f}" for o in outcomes),
        f"{min(rises):+.2f}",
        f"{learned} of {len(outcomes)}",
    )


def staleness_row(name: str, outcomes: Sequence[Outcome]) -> str:
    """One objective, all its seeds."""
    return cells(
        name,
        f"{outcomes[0].eta}",
        f"{fmean(o.staleness for o in outcomes):.1f}",
        f"{outcomes[0].steps}",
        f"{fmean(o.before for o in outcomes):.2f}",
        ", ".join(f"{o.after:.2f}" for o in outcomes),
        f"{fmean(fmean(o.rewards[-10:]) for o in outcomes):.2f}",
    )


def cells(*values: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(values)} |"


def text(trials: Iterable[Trial], outcomes: Sequence[Outcome]) -> str:
    """What a terminal shows of `trials`."""
    return tables(found(trials, outcomes))


def publish(trials: Iterable[Trial], outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes of `trials` to KEPT, their tables into PAGE, the plot to PLOT."""
    every = found(trials, outcomes)
    lines = ",\n".join(json.dumps(asdict(outcome), ensure_ascii=False) for outcome in every)
    KEPT.write_text(f"[\n{lines}\n]\n")
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(every)}\n{END}{after}")
    plot(by_name(every, "staleness"), PLOT)


def kept(file: Path = KEPT) -> list[Outcome]:
    """What was published."""
    return [Outcome(**one) for one in json.loads(file.read_text())]


def plot(objectives: dict[str, list[Outcome]], path: Path) -> None:
    """The reward by step, of each objective the mean of its seeds and their range, as a PNG."""
    # matplotlib wants a writable cache; the home folder may not be one.
    os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, outcomes in objectives.items():
        curves = [smooth(outcome.rewards) for outcome in outcomes]
        steps = range(1, min(len(curve) for curve in curves) + 1)
        columns = list(zip(*curves, strict=False))
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
