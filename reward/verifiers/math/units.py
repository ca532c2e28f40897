"""Reads the units of answers: 5 km is not 5 m, and 60 minutes are 1 hour. Linear time.

Only units in the table count. Any other word after a number may count things: 18 eggs.
"""

import re
from fractions import Fraction
from typing import NamedTuple

# The names of each unit, and its size after `=`.
_KINDS = {
    "length": "m meter metre=1 km kilometer kilometre=1000 cm centimeter centimetre=1/100 "
    "mm millimeter millimetre=1/1000 dm=1/10 nm=1/1000000000 inch inches inche=254/10000 "
    "ft foot feet=3048/10000 yd yard=9144/10000 mile mi=1609344/1000",
    "time": "s sec second=1 min minute=60 h hr hour=3600 day=86400 week=604800 ms=1/1000",
    "months": "month=1 year yr=12",
    "mass": "g gram=1 kg kilogram=1000 mg milligram=1/1000 ton tonne=1000000",
    "imperial mass": "lb=16 oz ounce=1",
    "volume": "l L liter litre=1 ml milliliter millilitre=1/1000",
    "imperial volume": "gallon=16 quart=4 pint=2 cup=1",
    "dollars": "$ dollar usd=100 cent ¢=1",
    "euros": "€ euro eur=1",
    "pounds": "£ gbp=1",
    "rupees": "₹ rupee inr=1",
    "degrees": "° degree=1",
    "radians": "rad radian=1",
    "celsius": "°C ℃=1",
    "fahrenheit": "°F ℉=1",
    "energy": "J joule=1 kj=1000",
    "power": "W watt=1 kw=1000",
}
_UNITS = {
    name: (kind, Fraction(size))
    for kind, names in _KINDS.items()
    for aliases, size in re.findall(r"([^=]+)=([\d/]+)", names)
    for name in aliases.split()
}
_STYLE = re.compile(r"\\(?:text|mathrm|mbox|textrm|textit|textbf|rm)(?![A-Za-z])|\\[ ,;:!]|[{}~]")
_POWER = re.compile(r"\s?\^\s?\{?(\d)\}?")
_DEGREE = re.compile(r"\^?\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?")
_TEMPERATURE = re.compile(r"(?:\u00b0|\bdegrees?) ?([CF])(?:elsius|ahrenheit)?(?![A-Za-z])")
_ONE = r"(?:\u00b0[CF]|[$\u20ac\u00a3\u20b9\u00a2\u00b0\u2103\u2109]|[A-Za-z]+)"
_MEASURE = re.compile(
    rf" ?(?P<over>{_ONE})(?:\^(?P<power>\d))?"
    rf"(?: ?(?:/|\b(?P<per>per|an?)\b) ?(?P<under>{_ONE})(?:\^(?P<under_power>\d))?)?(?![\w^/])"
)
_MONEY = re.compile(r"[-+]?\s?([$\u20ac\u00a3\u20b9])\s?-?[\d.]")
_NUMBER_END = re.compile(r"(?:(?<!\^)\d|\)|\\pi\b|\u03c0)(?![\d.,]*\d)")
_LONGEST = 200


class Unit(NamedTuple):
    """A unit of the table, a power of one, or a quotient of two."""

    kind: tuple[str, ...]
    """Equal for units that can be converted."""
    factor: Fraction
    is_quotient: bool = False
    total: "Unit | None" = None
    """The unit before "per": `20 miles per day` may mean 20 miles."""


def read_unit(text: str) -> Unit | None:
    """Return the unit after the last number of `text`, or None without a unit of the table."""
    if len(text) > _LONGEST:
        return None
    text = _STYLE.sub(" ", _POWER.sub(r"^\1", _DEGREE.sub("\u00b0", text.replace("\\$", "$"))))
    text = _TEMPERATURE.sub("\u00b0\\1", " ".join(text.split()).strip(" *_."))
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip(" .")
    money = _MONEY.match(text)
    if money:
        name, factor = _UNITS[money[1]]
        return Unit((name,), factor)
    ends = [number.end() for number in _NUMBER_END.finditer(text)]
    measure = _MEASURE.match(text, ends[-1]) if ends else None
    over = _known(measure["over"]) if measure else None
    if measure is None or over is None:
        return None
    power = measure["power"] or "1"
    kind = (over[0], power) if power != "1" else (over[0],)
    total = Unit(kind, over[1] ** int(power))
    if measure["under"] is None:
        return total
    under, under_power = _known(measure["under"]), measure["under_power"] or "1"
    if under is None:
        return None
    factor = total.factor / under[1] ** int(under_power)
    return Unit(
        (*kind, "/", under[0], under_power), factor, True, total if measure["per"] else None
    )


def unit_ratio(given: str, wanted: str) -> Fraction | None:
    """Return what the unit of `given` is in units of `wanted`: 1000 for `5 km` and `5000 m`.

    Return 1 if a text has no known unit, and None if the units measure different things."""
    left, right = read_unit(given), read_unit(wanted)
    if left is None or right is None:
        return Fraction(1)
    if left.total and not right.is_quotient:
        left = left.total
    elif right.total and not left.is_quotient:
        right = right.total
    kinds = {left.kind, right.kind}
    # Degrees are of an angle or a temperature.
    if ("degrees",) in kinds and kinds & {("celsius",), ("fahrenheit",)}:
        return Fraction(1)
    return left.factor / right.factor if len(kinds) == 1 else None


def _known(name: str) -> tuple[str, Fraction] | None:
    # Case matters for a single letter: `S` is not the `s` of seconds.
    name = name if (len(name) < 3 and name in _UNITS) or len(name) == 1 else name.lower()
    return _UNITS.get(name) or _UNITS.get(name.removesuffix("s") or name)
