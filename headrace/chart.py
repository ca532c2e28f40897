"""Curves of metrics as SVG, which a notebook shows. It needs no package for plots."""

import html
import math
from collections.abc import Sequence
from pathlib import Path

from headrace.models import Series

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 30, 36
"""Margins, in the units of WIDTH."""
COLOURS = ("#2a78d6", "#e0662e", "#2f9e62", "#8a5cd1", "#c2417c", "#7d7d28")
"""They read on white and on black."""
MARKED = 24
"""A curve of at most this number of values has a dot for each."""


class Chart:
    """Curves of one run. A notebook shows it; elsewhere `save` writes it to a file."""

    def __init__(self, title: str, x: str, curves: Sequence[Series]) -> None:
        self.title, self.x, self.curves = title, x, list(curves)

    @property
    def svg(self) -> str:
        """The chart as SVG. Texts and axes have the colour of the text around it."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" font-family="sans-serif" font-size="11" fill="currentColor" '
            'stroke-linejoin="round">'
        )
        curves = [curve for curve in self.curves if curve.x]
        body = _curves(curves, self.x) if curves else _text(LEFT, HEIGHT / 2, "no values yet")
        return f"{head}{_text(LEFT, 14, self.title, 'bold')}{body}</svg>"

    def save(self, file: str | Path) -> Path:
        """Write the chart to an SVG file."""
        path = Path(file)
        path.write_text(self.svg)
        return path

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        names = ", ".join(curve.name for curve in self.curves) or "no values yet"
        return f"<Chart of {self.title}: {names}>"


def _curves(curves: Sequence[Series], axis: str) -> str:
    low_x, high_x = _range([place for curve in curves for place in curve.x])
    low, high = _range([value for curve in curves for value in curve.mean])

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT),
            TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM),
        )

    bottom = HEIGHT - BOTTOM
    parts = [_text(WIDTH - RIGHT, HEIGHT - 6, axis, anchor="end")]
    for tick in _ticks(low, high):
        _, y = place(low_x, tick)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="currentColor" opacity="0.15"/>'
        )
        parts.append(_text(LEFT - 6, y + 4, f"{tick:.4g}", anchor="end"))
    parts += [
        _text(place(tick, low)[0], bottom + 16, f"{tick:.6g}", anchor="middle")
        for tick in _ticks(low_x, high_x)
    ]
    at = LEFT
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        points = [place(x, y) for x, y in zip(curve.x, curve.mean, strict=True)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(points) <= MARKED:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points
            ]
        parts.append(f'<circle cx="{at + 5}" cy="{HEIGHT - 10}" r="4" fill="{colour}"/>')
        parts.append(_text(at + 14, HEIGHT - 6, curve.name))
        at += 26 + 6 * len(curve.name)
    return "".join(parts)


def _text(x: float, y: float, text: str, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(text)}</text>"
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest value. A single value gets a margin on both sides."""
    low, high = min(values), max(values)
    margin = 0.0 if high > low else abs(low) / 2 or 0.5
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """Return up to six round numbers from `low` to `high`: multiples of 1, 2 or 5 · 10^k."""
    least = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(least))
    width = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= least * (1 - 1e-9))
    first, last = math.ceil(low / width - 1e-9), math.floor(high / width + 1e-9)
    return [number * width for number in range(first, last + 1)]
