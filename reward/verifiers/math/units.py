"""The table of units, and what a text measures: 5 km is not 5 m, and 60 minutes are 1 hour. Linear
time.

Only units in the table are compared. Any other word after a number may count things: 18 eggs.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

# Units that take prefixes: their symbols, and after `:` their names.
_SI = {
    "length": "m:meter metre",
    "mass": "g:gram gramme",
    "time": "s:second",
    "volume": "l L:liter litre",
    "energy": "J:joule",
    "power": "W:watt",
    "voltage": "V:volt",
    "current": "A:ampere amp",
    "force": "N:newton",
    "pressure": "Pa:pascal",
    "frequency": "Hz:hertz",
    "resistance": "\u03a9 \u2126:ohm",
    "temperature": "K:kelvin",
    "amount": "mol:mole",
    "charge": ":coulomb",
}
_PREFIXES = {
    "": ("", 0), "k": ("kilo", 3), "c": ("centi", -2), "m": ("milli", -3), "d": ("deci", -1),
    "M": ("mega", 6), "G": ("giga", 9), "\u00b5": ("micro", -6), "\u03bc": ("micro", -6),
    "n": ("nano", -9),
}  # fmt: skip
# The names of further units, and their size after `=`.
_OTHERS = {
    "length": "inch inches in=254/10000 ft foot feet=3048/10000 yd yard=9144/10000 "
    "mile mi=1609344/1000 米 м=1 千米 公里 км=1000 厘米 см=1/100 毫米 мм=1/1000",
    "time": "sec 秒 с=1 min minute 分钟 分鐘 мин=60 h hr hour 小时 小時 時間 시간 ч=3600 "
    "day 天=86400 week=604800",
    "months": "month=1 year yr=12",
    "mass": "kilo 千克 公斤 кг=1000 ton tonne 吨=1000000 克 г=1 "
    "lb pound=45359237/100000 oz ounce=45359237/1600000",
    "volume": "升 л=1 毫升 мл=1/1000",
    "imperial volume": "gallon=16 quart=4 pint=2 cup=1",
    "dollars": "$ dollar usd 美元=100 cent ¢=1",
    "euros": "€ euro eur 欧元=1",
    "pounds": "£ gbp pound 英镑=1",
    "rupees": "₹ rupee inr rs=1",
    "yuan": "¥ 元 yuan cny rmb=1",
    "yen": "¥ 円 yen jpy 日元=1",
    "won": "₩ 원 won krw=1",
    "rubles": "₽ ruble rouble rub руб рубль рубля рублей=1",
    "angle": "° degree 度=1",
    "radians": "rad radian=1",
    "celsius": "°C ℃ ° degree 度=1",
    "fahrenheit": "°F ℉ ° degree 度=1",
    "energy": "kWh=3600000",
}
_Kind = tuple[tuple[str, int], ...]
_UNITS: dict[str, list[tuple[_Kind, Fraction]]] = {}


def _kind(name: str) -> _Kind:
    return (("length", 3),) if name == "volume" else ((name, 1),)


def _fill_table() -> None:
    for kind, spelled in _SI.items():
        symbols, _, names = spelled.partition(":")
        scale = Fraction(1, 1000) if kind == "volume" else Fraction(1)
        for short, (long, power) in _PREFIXES.items():
            if short in ("c", "d") and kind not in ("length", "volume"):
                continue
            for name in (
                *(short + symbol for symbol in symbols.split()),
                *(long + name for name in names.split()),
            ):
                _UNITS[name] = [(_kind(kind), scale * Fraction(10) ** power)]
    for kind, spelled in _OTHERS.items():
        scale = Fraction(1, 1000) if kind == "volume" else Fraction(1)
        for aliases, size in re.findall(r"([^=]+)=([\d/]+)", spelled):
            for name in aliases.split():
                _UNITS.setdefault(name, []).append((_kind(kind), scale * Fraction(size)))


_fill_table()
_LONGEST_FIRST = sorted(
    (name for name in _UNITS if re.fullmatch("[A-Za-z]{2,}", name)), key=len, reverse=True
)
UNIT_NAMES = rf"(?:{'|'.join(_LONGEST_FIRST)})s?"
"""A pattern of the units with at least two Latin letters."""
# `5nm` and `5ns` may be products; `5mA`, `5cm` and `5min` are not.
_ATTACHED = re.compile("[kcmd]m|[mcd]l|[km]g|lb|oz|ft|in|mi|yd|hr|Hz|Pa|.[A-Z]|.{3,}")
ATTACHED_NAMES = rf"(?:{'|'.join(filter(_ATTACHED.fullmatch, _LONGEST_FIRST))})s?"
"""A pattern of the units that may stand at the number itself, as in `5cm`."""

_STYLE = re.compile(r"\\(?:text|mathrm|mbox|textrm|textit|textbf|rm)(?![A-Za-z])|\\[ ,;:!]|[{}~]")
_GREEK = re.compile(r"(?:\\Omega|(\\mu))(?![A-Za-z])(?:\s*\\(?:text|mathrm|mbox)\s*\{|\s*)")
_POWER = re.compile(r"\s*\^\s*(?=\d)")
_DEGREE = re.compile(r"\^?\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?")
_TEMPERATURE = re.compile(r"(?:\u00b0|\bdegrees?) ?([CF])(?:elsius|ahrenheit)?(?![A-Za-z])")
# `square meters`, `5 sq ft`, `meters squared`, `平方米`.
_AREA = re.compile(r" ?(?:\bsquare |\bsq\.? |平方)([^\W\d_]+)| ?\b([A-Za-z]+) squared\b")
_VOLUME = re.compile(r" ?(?:\bcubic |\bcu\.? |立方)([^\W\d_]+)| ?\b([A-Za-z]+) cubed\b")
_SPEED = re.compile(r"\b(k?m)(?:ph|/?hr?)\b")
_ONE = r"(?:\u00b0[CF]|[$\u20ac\u00a3\u00a5\u20a9\u20bd\u20b9\u00a2\u00b0\u2103\u2109]|[^\W\d_]+)"
_MEASURE = re.compile(
    rf" ?(?P<over>{_ONE})\.?(?:\^(?P<power>\d))?"
    rf"(?: ?(?:/|\b(?P<per>per|an?)\b) ?(?P<under>{_ONE})(?:\^(?P<under_power>\d))?)?(?![\w^/])"
)
_MONEY = re.compile(
    r"[-+]?\s?(?:US)?([$\u20ac\u00a3\u00a5\u20a9\u20bd\u20b9]|(?:USD|EUR|GBP|CNY|RMB|JPY|INR|Rs)\b)"
    r"\.?\s?-?[\d.]"
)
_NUMBER_END = re.compile(r"(?:(?<!\^)\d|\)|\\pi\b|\u03c0)(?![\d.,]*\d)")
_LONGEST = 200


class Unit(NamedTuple):
    """One meaning of a unit, of a power of a unit, or of a quotient of two units."""

    kind: _Kind
    """Equal for units that can be converted."""
    factor: Fraction
    is_total: bool = False
    """Whether "per" and the unit after it are left out: `20 miles per day` may mean 20 miles."""


def read_units(text: str) -> list[Unit]:
    """Return the meanings of the unit after the last number of `text`. Return an empty list without
    a unit of the table."""
    if len(text) > _LONGEST:
        return []
    text = _GREEK.sub(lambda match: "\u00b5" if match[1] else "\u03a9", text)
    text = _STYLE.sub(" ", _DEGREE.sub("\u00b0", text.replace("\\$", "$")))
    text = _TEMPERATURE.sub("\u00b0\\1", " ".join(_POWER.sub("^", text).split()).strip(" *_."))
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip(" .")
    money = _MONEY.match(text)
    if money:
        return [Unit(*unit) for unit in _known(money[1])]
    text = _SPEED.sub(lambda match: f"{'mi' if match[1] == 'm' else 'km'}/h", with_powers(text))
    ends = [number.end() for number in _NUMBER_END.finditer(text)]
    measure = _MEASURE.match(text, ends[-1]) if ends else None
    if measure is None:
        return []
    over = [*_raised(measure["over"], int(measure["power"] or 1))]
    if measure["under"] is None:
        return over
    under = [*_raised(measure["under"], -int(measure["under_power"] or 1))]
    quotients = [
        Unit((*above.kind, *below.kind), above.factor * below.factor)
        for above in over
        for below in under
    ]
    totals = [unit._replace(is_total=True) for unit in over] if measure["per"] and under else []
    return quotients + totals


def with_powers(text: str) -> str:
    """Return `text` with exponents for `square meters` and `cubic feet`."""
    text = _AREA.sub(lambda match: f" {match[1] or match[2]}^2", text)
    return _VOLUME.sub(lambda match: f" {match[1] or match[2]}^3", text)


def unit_ratio(given: str, wanted: str) -> Fraction | None:
    """Return what the unit of `given` is in units of `wanted`: 1000 for `5 km` and `5000 m`.

    Return 1 if a text has no known unit, and None if the units measure different things."""
    left, right = read_units(given), read_units(wanted)
    if not left or not right:
        return Fraction(1)
    for first in left:
        for second in right:
            if first.kind == second.kind and not (first.is_total and second.is_total):
                return first.factor / second.factor
    return None


def _raised(name: str, power: int) -> Iterator[Unit]:
    for kind, factor in _known(name):
        yield Unit(tuple((part, exponent * power) for part, exponent in kind), factor**power)


def _known(name: str) -> list[tuple[_Kind, Fraction]]:
    # Case matters for symbols: `mW` is not `MW`, and `S` is not the `s` of seconds.
    names = [name, name.removesuffix("s")]
    if len(name) > 1:
        names += [name.lower(), name.lower().removesuffix("s")]
    return next((_UNITS[spelling] for spelling in names if spelling in _UNITS), [])
