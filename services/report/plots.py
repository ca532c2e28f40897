"""Curves of metrics by step, as PNG files."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEGEND_LINE = 7.2, 3.2, 0.22
"""Inches."""
DPI = 110
LABEL = 45
"""Characters of a label."""
MANY = 60
"""A curve with more points has no markers."""


@dataclass(frozen=True)
class Curve:
    label: str
    steps: Sequence[float]
    values: Sequence[float]
    dashed: bool = False


def draw(title: str, unit: str, curves: Sequence[Curve]) -> bytes:
    """Draw `curves` over the step. Return the PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    lines = (len(curves) + 1) // 2 if len(curves) > 1 else 0
    figure = Figure(figsize=(WIDTH, HEIGHT + LEGEND_LINE * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for curve in curves:
        axes.plot(
            curve.steps,
            curve.values,
            linestyle="--" if curve.dashed else "-",
            marker="." if len(curve.steps) <= MANY else "",
            label=_label(curve.label),
        )
    axes.set(xlabel="step", ylabel=unit, title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if lines:
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    written = io.BytesIO()
    figure.savefig(written, dpi=DPI, format="png")
    return written.getvalue()


def _label(text: str) -> str:
    """Shorten a label. matplotlib hides labels that begin with _ and reads $ as a formula."""
    short = text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"
    return short.lstrip("_").replace("$", r"\$")
