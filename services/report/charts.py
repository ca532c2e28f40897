"""Curves of metrics by step, as SVG that takes its colours from the page. Pure.

A drawing holds numbers alone: names stand in the page, which escapes them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.series import Buckets, bucket_width

WIDTH, HEIGHT = 340, 170
LEFT, RIGHT, TOP, BOTTOM = 42, 14, 6, 18
"""Margins, in the units of WIDTH."""
POINTS = 150
"""A curve with more values is drawn as the means of buckets, in a band from least to largest."""
MARKED = 24
"""A curve with few values has a dot for each: at most this number."""
COLOURS = 6
SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e4, "k"))


@dataclass(frozen=True)
class Curve:
    label: str
    steps: Sequence[float]
    values: Sequence[float]
    dashed: bool = False


def draw(curves: Sequence[Curve]) -> str:
    """Return the content of an SVG of WIDTH and HEIGHT. Each curve has a value."""
    low_x, high_x = _ends([step for curve in curves for step in curve.steps])
    low, high = _ends([value for curve in curves for value in curve.values])
    margin = 0.05 * (high - low)
    low, high = low - margin, high + margin

    def x(step: float) -> float:
        return LEFT + (step - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def path(steps: Sequence[float], values: Sequence[float]) -> str:
        return " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in zip(steps, values, strict=True))

    parts = []
    for tick in ticks(low, high):
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y(tick) + 3:.1f}" class="y">{short(tick)}</text>')
    parts += [
        f'<text x="{x(tick):.1f}" y="{HEIGHT - 4}" class="x">{short(tick)}</text>'
        for tick in ticks(low_x, high_x)
        if tick == int(tick)
    ]
    for number, curve in enumerate(curves):
        colour = f"c{number % COLOURS}"
        steps, values = curve.steps, curve.values
        if len(values) > POINTS:
            buckets = Buckets(np.array(steps), bucket_width(steps[0], steps[-1], POINTS))
            means, least, largest = buckets.cut(np.array(values))
            steps, values = list(buckets.places), list(means)
            band = f"{path(steps, list(least))} {path(steps[::-1], list(largest)[::-1])}"
            parts.append(f'<polygon class="band {colour}" points="{band}"/>')
        dashed = ' stroke-dasharray="5 3"' * curve.dashed
        parts.append(f'<polyline class="{colour}" points="{path(steps, values)}"{dashed}/>')
        if len(values) <= MARKED:
            parts += [
                f'<circle class="{colour}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="2"/>'
                for step, value in zip(steps, values, strict=True)
            ]
    return "".join(parts)


def ticks(low: float, high: float) -> list[float]:
    """Return one to five round numbers from `low` to `high`."""
    width = bucket_width(low, high, 5)
    first = math.ceil(low / width)
    return [n * width for n in range(first, math.floor(high / width) + 1)]


def short(value: float) -> str:
    """Format a number in a few characters: 12k, 0.05, 1e-06."""
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            unit = 1e3 if suffix == "k" else size
            return f"{value / unit:.3g}{suffix}"
    # Rounding leaves 0.30000000000000004.
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest value, with room between them."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
