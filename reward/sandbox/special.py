"""The special methods of stand-ins. They decide how far a test believes the program.

A stand-in has only the special methods that the program's class defines.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from reward.sandbox.stand_ins import Link, ask, link_of, plain_value

_NUMBERS = (int, float, complex, Decimal, Fraction)


def _judged(value: Any, name: str) -> tuple[Link, Callable[..., Any] | None]:
    """Return the link, and the plain type's method if that method decides. It does not decide for
    objects that the test has made."""
    link = link_of(value)
    assert link is not None
    method = getattr(link.base, name, None) if link.base and not link.made else None
    return link, method


def forwarded(name: str) -> Callable[..., Any]:
    """Make a method whose answer can be believed: the program cannot learn from it what the test
    expects."""

    def special(self: Any, *arguments: Any) -> Any:
        return ask(self, "special", name, *arguments)

    return special


def _measured(name: str) -> Callable[..., Any]:
    """Make unary operators, and conversions to numbers."""
    words = name in ("__len__", "__bool__")

    def special(self: Any, *arguments: Any) -> Any:
        link, method = _judged(self, name)
        if method:
            return method(plain_value(self, link), *arguments)
        answer = link.peer.ask("special", self, name, *arguments)
        doubtful = link.informed or (words and not link.made)
        result = link_of(answer)
        if result:
            result.informed = result.informed or link.informed
        elif doubtful and not _counted(self, name, answer):
            link.peer.doubt = link.peer.doubt or name
        return answer

    return special


def _written(name: str) -> Callable[..., Any]:
    """Make conversions to text. The text of a difference from the expected value may be a zero."""

    def special(self: Any, *arguments: Any) -> Any:
        link, _ = _judged(self, name)
        answer = link.peer.ask("special", self, name, *arguments)
        if link.informed and isinstance(answer, str) and _zero(str.__str__(answer)):
            link.peer.doubt = link.peer.doubt or name
        return answer

    return special


def _zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return not text.strip()


def _counted(value: Any, name: str, length: Any) -> bool:
    """Whether `length`, which the program's `__len__` returned, is the number of the object's
    items. `list` asks for a length too, and takes the items."""
    known = name == "__len__" and isinstance(value, Iterable)
    return known and length == ask(value, "count", length + 1)


def _combined(name: str) -> Callable[..., Any]:
    """Make binary operators. Two objects of the program may give any result."""

    def special(self: Any, *others: Any) -> Any:
        link, method = _judged(self, name)
        ours = link_of(others[0]) is None
        if ours and method:
            return method(plain_value(self, link), *others)
        answer = link.peer.ask("special", self, name, *others)
        if ours and answer is not NotImplemented:
            result = link_of(answer)
            if result and link.made and result.base not in _NUMBERS:
                result.informed = True
            else:
                link.peer.doubt = link.peer.doubt or name
        return answer

    return special


def _ordered(name: str) -> Callable[..., Any]:
    def special(self: Any, other: Any) -> Any:
        link, method = _judged(self, name)
        ours = link_of(other) is None
        if ours and method:
            return method(plain_value(self, link), other)
        answer = link.peer.ask("special", self, name, other)
        believed = answer is False or answer is NotImplemented
        if not believed and (ours or not _one_way(self, name, other)):
            link.peer.doubt = link.peer.doubt or name
        return answer

    return special


def _one_way(left: Any, name: str, right: Any) -> bool:
    """Tell whether a true order of two objects is false the other way round. Equal objects are
    exempt, as in `a <= a`."""
    first, second = link_of(left), link_of(right)
    assert first is not None
    assert second is not None
    back = first.peer.ask("special", right, name, left)
    if back is False or back is NotImplemented:
        return True
    return name in ("__le__", "__ge__") and _hold_the_same(left, right)


def _equal(self: Any, other: Any) -> Any:
    link = link_of(self)
    assert link is not None
    if link_of(other) is None:
        if link.base:
            return link.base.__eq__(plain_value(self, link), other)
        if not link.made:
            if type(other).__name__ == type(self).__name__:
                link.peer.unlike = type(other).__name__
            return NotImplemented
        answer = link.peer.ask("special", self, "__eq__", other)
        believed = answer is False or answer is NotImplemented
    else:
        answer = link.peer.ask("special", self, "__eq__", other)
        believed = answer is False or answer is NotImplemented or _same(self, other)
    if not believed:
        link.peer.doubt = link.peer.doubt or "__eq__"
    return answer


def _same(left: Any, right: Any) -> bool:
    """Tell whether the program may call its two objects equal: they hold the same, or the test has
    made both, and they do not equal everything."""
    first, second = link_of(left), link_of(right)
    assert first is not None
    assert second is not None
    if _hold_the_same(left, right):
        return True
    to_all = first.peer.ask("same to all", left, "__eq__", [])
    return first.made and second.made and to_all is False


def _hold_the_same(left: Any, right: Any) -> bool:
    """Tell whether both hold the same. False for an empty object that the test has made with
    arguments."""
    first, second = link_of(left), link_of(right)
    assert first is not None
    assert second is not None
    if first.number == second.number:
        return True
    state = first.peer.state(left)
    empty = isinstance(state, tuple) and state[1:] == (None, [])
    return state == first.peer.state(right) and not (empty and (first.given or second.given))


def _unequal(self: Any, other: Any) -> Any:
    link, method = _judged(self, "__ne__")
    ours = link_of(other) is None
    if ours and not link.made:
        return method(plain_value(self, link), other) if method else NotImplemented
    answer = link.peer.ask("special", self, "__ne__", other)
    believed = answer is True or answer is NotImplemented
    if not believed and (ours or not _same(self, other)):
        link.peer.doubt = link.peer.doubt or "__ne__"
    return answer


def _contains(self: Any, value: Any) -> Any:
    link, method = _judged(self, "__contains__")
    if method:
        return method(plain_value(self, link), value)
    if not link.made and isinstance(self, Iterable):
        return any(item is value or item == value for item in self)
    answer = link.peer.ask("special", self, "__contains__", value)
    if answer is not False and not (
        link.made and link.peer.ask("same to all", self, "__contains__", _unseen(value)) is False
    ):
        link.peer.doubt = link.peer.doubt or "__contains__"
    return answer


def _unseen(value: Any) -> list[Any]:
    """Return values of the same type that no honest container holds."""
    if type(value) is int or type(value) is float:
        far = secrets.randbits(80) + (1 << 80)
        return [far, -far, far / (1 << 60)]
    if type(value) is str:
        return [secrets.token_hex(16)]
    return []


def _call(self: Any, *arguments: Any, **keywords: Any) -> Any:
    return ask(self, "call", *arguments, **keywords)


def _exit(self: Any, kind: Any, error: Any, trace: Any) -> bool:
    """`__exit__` of stand-ins. The program may not swallow the exception that makes a test fail."""
    if error is not None and not isinstance(error, Exception):
        return False
    swallowed = ask(self, "exit", error) is True
    if error is None or isinstance(error, AssertionError):
        return False
    link = link_of(self)
    if swallowed and link and not link.made:
        link.peer.doubt = link.peer.doubt or "__exit__"
    return swallowed


def _await(self: Any) -> Iterator[Any]:
    return ask(self, "run")
    yield


def send(self: Any, value: Any) -> Any:
    """Run the awaited coroutine at once, in the program."""
    raise StopIteration(ask(self, "run"))


def _awaiting(name: str) -> Callable[..., Any]:
    run = "run next" if name == "__anext__" else "run"

    async def special(self: Any, *arguments: Any) -> Any:
        return ask(ask(self, "special", name, *arguments), run)

    return special


_BINARY = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift",
    "rshift", "and", "or", "xor",
)  # fmt: skip
_MEASURES = (
    "len", "bool", "neg", "pos", "abs", "invert", "int", "float", "complex", "index", "round",
    "trunc", "floor", "ceil",
)  # fmt: skip
_FORWARDED = (
    "iter", "next", "getitem", "setitem", "delitem", "reversed", "hash", "bytes", "enter", "aiter",
)  # fmt: skip
SPECIAL: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": forwarded(f"__{name}__") for name in _FORWARDED},
    **{f"__{name}__": _measured(f"__{name}__") for name in _MEASURES},
    **{f"__{name}__": _written(f"__{name}__") for name in ("str", "repr", "format")},
    **{f"__{p}{name}__": _combined(f"__{p}{name}__") for name in _BINARY for p in ("", "r", "i")},
    **{f"__{name}__": _ordered(f"__{name}__") for name in ("lt", "le", "gt", "ge")},
    **{f"__{name}__": _awaiting(f"__{name}__") for name in ("anext", "aenter", "aexit")},
    "__eq__": _equal,
    "__ne__": _unequal,
    "__contains__": _contains,
    "__call__": _call,
    "__exit__": _exit,
    "__await__": _await,
}
