"""Cut metrics into buckets of equal width, as many as a chart has pixels."""

import numpy as np

from services.series.columns import Numbers

DIGITS = 5
"""Significant digits of a value: a chart of 1,000 pixels shows three."""
POWERS = np.array([float(f"1e{power}") for power in range(309)])
NICE = (1.0, 2.0, 5.0)


def bucket_width(low: float, high: float, points: int) -> float:
    """Return the width of the buckets for the places from `low` to `high`: 1, 2 or 5 times a power
    of ten. Borders are multiples of the width, so the buckets of a growing run keep theirs."""
    span = max(high - low, 1e-9)
    power = int(np.floor(np.log10(span / points)))
    for exponent in (power, power + 1, power + 2):
        for nice in NICE:
            width = nice * 10.0**exponent
            if np.ceil(high / width) - np.ceil(low / width) < points:
                return float(width)
    raise AssertionError


class Buckets:
    """Buckets of rising places. They end at multiples of a width."""

    def __init__(self, places: Numbers, width: float) -> None:
        # A hair less, so that the place 0.3 is in the bucket that ends at 3 · 0.1.
        numbers = np.ceil(places / width - 1e-9)
        self._starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
        ends = np.concatenate([self._starts[1:], [len(places)]])
        self.places: Numbers = places[ends - 1]
        """The last place in each bucket."""
        self.count: Numbers = ends - self._starts

    def cut(self, values: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the mean, the least and the largest of the values in each bucket."""
        sums = np.add.reduceat(values, self._starts, dtype=np.float64)
        least, largest = (
            function.reduceat(values, self._starts) for function in (np.minimum, np.maximum)
        )
        return rounded(sums / self.count), rounded(least), rounded(largest)


def rounded(values: Numbers) -> Numbers:
    """Round to DIGITS significant digits."""
    exact = values.astype(np.float64)
    size = np.abs(exact)
    power = np.floor(np.log10(np.where(size > 0, size, 1.0))).astype(np.int64)
    shift = DIGITS - 1 - power
    # Powers of ten are exact only above 1: small values are multiplied, large ones divided.
    up, down = POWERS[np.clip(shift, 0, 308)], POWERS[np.clip(-shift, 0, 308)]
    shortened: Numbers = np.rint(exact * up / down) / up * down
    return shortened
