"""Plain values as JSON, in both directions. No code of a value's class runs here.

Scalars and lists stand for themselves. Every other value is `{kind: content}`.
"""

import builtins
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

Convert = Callable[[Any], Any]
_EXACT = 2**53
"""Larger integers are not exact as floats, which some JSON readers make of them."""
_VIEWS: tuple[type, ...] = tuple(type(getattr({}, name)()) for name in ("keys", "items", "values"))
_KEYS, _ITEMS, _VALUES = _VIEWS

CONTAINERS = (list, dict, set, bytearray, deque)
"""The containers that a call may change in place."""
KEPT = 16
"""The number of passed containers that are compared with the program's if the test fails."""
IMMUTABLE: tuple[type, ...] = (int, float, str, bytes, tuple, frozenset, complex, Decimal, Fraction)
"""Types whose subclasses keep their value on the other side."""


def _int(_: Convert, value: int) -> Any:
    # Python's own text of a large integer takes quadratic time, and has a limit.
    number = int.__add__(value, 0)
    return number if -_EXACT < number < _EXACT else {"int": hex(number)}


def _each(encode: Convert, values: Iterable[Any]) -> list[Any]:
    return [encode(value) for value in values]


def _pairs(encode: Convert, value: dict[Any, Any]) -> list[Any]:
    return [_each(encode, pair) for pair in dict.items(value)]


def _range(encode: Convert, value: Any) -> Any:
    return _each(encode, (value.start, value.stop, value.step))


# These are methods of the plain types: a subclass may have replaced its own.
_ENCODERS: dict[type, Callable[[Convert, Any], Any]] = {
    type(None): lambda _, v: v,
    bool: lambda _, v: v,
    int: _int,
    float: lambda _, v: float.__mul__(v, 1.0),
    str: lambda _, v: str.__str__(v),
    list: lambda encode, v: _each(encode, list.__iter__(v)),
    tuple: lambda encode, v: {"tuple": _each(encode, tuple.__iter__(v))},
    dict: lambda encode, v: {"dict": _pairs(encode, v)},
    OrderedDict: lambda encode, v: {
        "OrderedDict": [_each(encode, pair) for pair in OrderedDict.items(v)]
    },
    Counter: lambda encode, v: {"Counter": _pairs(encode, v)},
    defaultdict: lambda encode, v: {
        "defaultdict": [encode(v.default_factory), _pairs(encode, v)],
    },
    set: lambda encode, v: {"set": _each(encode, set.__iter__(v))},
    frozenset: lambda encode, v: {"frozenset": _each(encode, frozenset.__iter__(v))},
    deque: lambda encode, v: {"deque": [_each(encode, deque.__iter__(v)), v.maxlen]},
    bytes: lambda _, v: {"bytes": bytes.hex(v)},
    bytearray: lambda _, v: {"bytearray": bytearray.hex(v)},
    complex: lambda _, v: {"complex": [v.real, v.imag]},
    range: lambda encode, v: {"range": _range(encode, v)},
    slice: lambda encode, v: {"slice": _range(encode, v)},
    Decimal: lambda _, v: {"Decimal": Decimal.__str__(v)},
    Fraction: lambda _, v: {"Fraction": [hex(v.numerator), hex(v.denominator)]},
    date: lambda _, v: {"date": v.isoformat()},
    time: lambda _, v: {"time": v.isoformat()},
    datetime: lambda _, v: {"datetime": v.isoformat()},
    timedelta: lambda _, v: {"timedelta": [v.days, v.seconds, v.microseconds]},
    _KEYS: lambda encode, v: {"keys": _each(encode, v)},
    _ITEMS: lambda encode, v: {"items": _each(encode, v)},
    _VALUES: lambda encode, v: {"values": _each(encode, v)},
    type(NotImplemented): lambda _, v: {"name": "NotImplemented"},
    type(...): lambda _, v: {"name": "Ellipsis"},
}

_DECODERS: dict[str, Callable[[Convert, Any], Any]] = {
    "int": lambda _, v: int(v, 16),
    "tuple": lambda decode, v: tuple(map(decode, v)),
    "dict": lambda decode, v: {decode(key): decode(value) for key, value in v},
    "OrderedDict": lambda decode, v: OrderedDict([tuple(map(decode, pair)) for pair in v]),
    "Counter": lambda decode, v: Counter({decode(key): decode(value) for key, value in v}),
    "defaultdict": lambda decode, v: defaultdict(
        decode(v[0]), {decode(key): decode(value) for key, value in v[1]}
    ),
    "set": lambda decode, v: set(map(decode, v)),
    "frozenset": lambda decode, v: frozenset(map(decode, v)),
    "deque": lambda decode, v: deque(map(decode, v[0]), v[1]),
    "bytes": lambda _, v: bytes.fromhex(v),
    "bytearray": lambda _, v: bytearray.fromhex(v),
    "complex": lambda _, v: complex(*v),
    "range": lambda decode, v: range(*map(decode, v)),
    "slice": lambda decode, v: slice(*map(decode, v)),
    "Decimal": lambda _, v: Decimal(v),
    "Fraction": lambda _, v: Fraction(int(v[0], 16), int(v[1], 16)),
    "date": lambda _, v: date.fromisoformat(v),
    "time": lambda _, v: time.fromisoformat(v),
    "datetime": lambda _, v: datetime.fromisoformat(v),
    "timedelta": lambda _, v: timedelta(*v),
    "keys": lambda decode, v: dict.fromkeys(map(decode, v)).keys(),
    "items": lambda decode, v: dict(map(decode, v)).items(),
    "values": lambda decode, v: dict(enumerate(map(decode, v))).values(),
    "name": lambda _, v: {"NotImplemented": NotImplemented, "Ellipsis": ...}[v],
    "type": lambda _, v: TYPES[v],
}

TYPES: dict[str, Any] = {
    **{name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)},
    **{str(kind.__name__): kind for kind in _ENCODERS if kind.__name__ not in vars(builtins)},
}
"""Types that are the same on both sides, by name."""

KINDS: dict[str, Any] = {
    str(kind.__name__): kind
    for kind in (
        types.FunctionType, types.GeneratorType, types.MethodType, types.CoroutineType,
        types.AsyncGeneratorType, types.BuiltinFunctionType, types.ModuleType,
    )
}  # fmt: skip
"""Types that a stand-in claims to be, so that `isinstance` and `inspect` agree."""


def base_of(kind: type) -> Any:
    """Return the plain type that `kind` is or extends, or None."""
    return next((base for base in kind.__mro__ if base in _ENCODERS), None)


def encode_as(base: Any, encode: Convert, value: Any) -> Any:
    """Encode `value` as an instance of the plain type `base`. `encode` encodes its parts."""
    return _ENCODERS[base](encode, value)


def encode_plain(encode: Convert, otherwise: Convert, value: Any) -> Any:
    """Encode `value` if its type is plain, or if `value` is a type that both sides have. If not,
    return `otherwise(value)`. `encode` encodes its parts."""
    convert = _ENCODERS.get(type(value))
    if convert is not None:
        return convert(encode, value)
    name = str(getattr(value, "__name__", "")) if issubclass(type(value), type) else ""
    return {"type": name} if name and TYPES.get(name) is value else otherwise(value)


def decode_plain(decode: Convert, kind: str, content: Any) -> Any:
    """Decode the result of `encode_plain`. Raises KeyError, ValueError, TypeError, …"""
    return _DECODERS[kind](decode, content)


def overwrite(old: Any, new: Any) -> None:
    """Give `old` the content that a call has given it: tests read containers that were changed in
    place."""
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set | deque):
        old.clear()
        if isinstance(old, deque):
            old.extend(new)
        else:
            old.update(new)
