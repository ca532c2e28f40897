"""What a test has in place of the program's objects, and how far it believes them.

A stand-in forwards to the object, in the program's process. There is one for each object, so that
identity holds, and one class for each class, with the same special methods: `isinstance`, `except`
and `callable` mean what they mean there. A subclass of int, str, tuple, … keeps its plain value
here, and one of list, dict, … sends it, so that a comparison with a plain value compares values.

The program wrote the special methods. Some of their answers could make any test pass: that
`f(3) - 9` is 0, or that 9 is in `f(3)`. A test that passes by such an answer has shown nothing:
`TestPeer.doubt` names it, and the verdict is an error. docs/sandbox.md has the table.
"""

import contextlib
import importlib
import json
import types
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from reward.sandbox.peers import Channel, Peer, UnsendableError
from reward.sandbox.values import IMMUTABLE, KINDS, base_of, encode_as

_PROTOCOL = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that Python gives a meaning of its own: raised by a call, `map` would just end."""
_ENDS = {"__next__": StopIteration, "run next": StopAsyncIteration}
"""Those that belong to an operation: it has nothing more to give."""
_NUMBERS = (int, float, complex, Decimal, Fraction)
_PREDICATES = ("count", "endswith", "isdisjoint", "issubset", "issuperset", "startswith")
"""Methods of plain types that a test may call with what it expects."""
_SEND = ("send", "throw", "close")


class ProgramError(Exception):
    """An exception of the protocol that the program has raised."""


class ProgramExit(BaseException):
    """One that does not derive from Exception."""


class Link:
    """To which object of the program a stand-in belongs."""

    __slots__ = ("base", "informed", "made", "number", "peer")

    def __init__(self, peer: "TestPeer", number: int, base: Any = None) -> None:
        self.peer, self.number, self.base = peer, number, base
        self.made = False
        """Whether the test has made it, as `Name(…)` of a class of the program."""
        self.informed = False
        """Whether it comes from arithmetic with a value of the test."""


def link_of(value: Any) -> Link | None:
    """The link of a stand-in. None: the value is the test's own."""
    if isinstance(type(value), RemoteType):
        return object.__getattribute__(value, "_Remote__link")
    if type(value) is RemoteType:
        return type.__getattribute__(value, "_link")
    return None


def _ask(value: Any, operation: str, *arguments: Any, **keywords: Any) -> Any:
    link = link_of(value)
    assert link is not None
    return link.peer.ask(operation, value, *arguments, **keywords)


class RemoteType(type):
    """A class of the program."""

    _link: Link | None = None

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        found = _ask(cls, "call", *arguments, **keywords)
        link = link_of(found)
        if link and cls._link and cls._link.made and type(found) is cls:
            link.made = True
        return found

    def __getattr__(cls, name: str) -> Any:
        if name == "__abstractmethods__":
            raise AttributeError(name)
        return _ask(cls, "getattr", name)

    def __setattr__(cls, name: str, value: Any) -> None:
        _ask(cls, "setattr", name, value)

    def __bool__(cls) -> bool:
        return True

    def __iter__(cls) -> Any:
        return _ask(cls, "special", "__iter__")

    def __len__(cls) -> Any:
        return _ask(cls, "special", "__len__")

    def __getitem__(cls, key: Any) -> Any:
        return _ask(cls, "special", "__getitem__", key)

    def __contains__(cls, value: Any) -> Any:
        if link_of(value) is None and (link := cls._link):
            link.peer.doubt = link.peer.doubt or "__contains__ of a class"
        return _ask(cls, "special", "__contains__", value)


def _attribute(name: str) -> property:
    return property(lambda self: _ask(self, "getattr", name))


def _hiding(name: str) -> property:
    """What a subclass of a plain type has in place of a method: a field, but no other method."""

    def hiding(self: Any) -> Any:
        link = link_of(self)
        assert link is not None
        found = _ask(self, "getattr", name)
        plain = link.made or (link_of(found) is None and not callable(found))
        return found if plain else getattr(link.base, name).__get__(self)

    return property(hiding)


class Remote(metaclass=RemoteType):
    """An object of the program."""

    __dict__ = _attribute("__dict__")

    def __init_subclass__(cls) -> None:
        if "_link" not in vars(cls):
            raise UnsendableError("a test cannot extend a class of the program")

    def __getattr__(self, name: str) -> Any:
        link = link_of(self)
        if link and name in _PREDICATES and not link.made:
            if hasattr(link.base, name):
                return getattr(_plain(self, link), name)
            link.peer.doubt = link.peer.doubt or name
        return _ask(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        _ask(self, "delattr", name)

    def __copy__(self) -> Any:
        return _ask(self, "copy", "copy")

    def __deepcopy__(self, memo: Any) -> Any:
        return _ask(self, "copy", "deepcopy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsendableError("a test cannot pickle an object of the program")


def _plain(value: Any, link: Link) -> Any:
    """The plain value of a subclass of a plain type."""
    return value if link.base in IMMUTABLE else link.peer.ask("plain", value)


def _judged(value: Any, name: str) -> tuple[Link, Callable[..., Any] | None]:
    """The link, and the plain type's method if that decides: not for what the test has made."""
    link = link_of(value)
    assert link is not None
    method = getattr(link.base, name, None) if link.base and not link.made else None
    return link, method


def _forwarded(name: str) -> Callable[..., Any]:
    def special(self: Any, *arguments: Any) -> Any:
        return _ask(self, "special", name, *arguments)

    return special


def _measured(name: str) -> Callable[..., Any]:
    """Unary operators, and conversions to numbers."""
    words = name in ("__len__", "__bool__")

    def special(self: Any, *arguments: Any) -> Any:
        link, method = _judged(self, name)
        if method:
            return method(_plain(self, link), *arguments)
        answer = link.peer.ask("special", self, name, *arguments)
        doubtful = link.informed or (words and not link.made)
        if doubtful and link_of(answer) is None and not _counted(self, name, answer):
            link.peer.doubt = link.peer.doubt or name
        return answer

    return special


def _counted(value: Any, name: str, length: Any) -> bool:
    """Whether there are as many items. `list` asks for a length, too, and takes the items."""
    known = name == "__len__" and isinstance(value, Iterable)
    return known and length == _ask(value, "count", length + 1)


def _combined(name: str) -> Callable[..., Any]:
    """Binary operators. What comes of two objects of the program is its own affair."""

    def special(self: Any, *others: Any) -> Any:
        link, method = _judged(self, name)
        ours = link_of(others[0]) is None
        if ours and method:
            return method(_plain(self, link), *others)
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
            return method(_plain(self, link), other)
        answer = link.peer.ask("special", self, name, other)
        if ours and answer is not False and answer is not NotImplemented:
            link.peer.doubt = link.peer.doubt or name
        return answer

    return special


def _equal(self: Any, other: Any) -> Any:
    link = link_of(self)
    assert link is not None
    if link_of(other) is None:
        if link.base:
            return link.base.__eq__(_plain(self, link), other)
        if not link.made:
            return NotImplemented
        answer = link.peer.ask("special", self, "__eq__", other)
        believed = answer is False or answer is NotImplemented
    else:
        answer = link.peer.ask("special", self, "__eq__", other)
        believed = answer is False or answer is NotImplemented or _same(self, other)
    if not believed:
        link.peer.doubt = link.peer.doubt or "__eq__"
    return answer


def _same(one: Any, other: Any) -> bool:
    """Whether the program may say that its two objects are equal: they hold the same, or the test
    has made both, and they do not equal everything."""
    first, second = link_of(one), link_of(other)
    assert first is not None
    assert second is not None
    peer = first.peer
    if first.number == second.number or peer.state(one) == peer.state(other):
        return True
    return first.made and second.made and peer.ask("same to all", one, "__eq__") is False


def _unequal(self: Any, other: Any) -> Any:
    link, method = _judged(self, "__ne__")
    if link_of(other) is not None or link.made:
        return link.peer.ask("special", self, "__ne__", other)
    return method(_plain(self, link), other) if method else NotImplemented


def _contains(self: Any, value: Any) -> Any:
    link, method = _judged(self, "__contains__")
    if method:
        return method(_plain(self, link), value)
    if not link.made and isinstance(self, Iterable):
        return any(one is value or one == value for one in self)
    answer = link.peer.ask("special", self, "__contains__", value)
    if answer is not False and not (
        link.made and link.peer.ask("same to all", self, "__contains__") is False
    ):
        link.peer.doubt = link.peer.doubt or "__contains__"
    return answer


def _call(self: Any, *arguments: Any, **keywords: Any) -> Any:
    return _ask(self, "call", *arguments, **keywords)


def _exit(self: Any, kind: Any, error: Any, trace: Any) -> bool:
    """The program may not swallow what makes a test fail."""
    if error is not None and not isinstance(error, Exception):
        return False
    swallowed = _ask(self, "exit", error) is True
    if error is None or isinstance(error, AssertionError):
        return False
    link = link_of(self)
    if swallowed and link and not link.made:
        link.peer.doubt = link.peer.doubt or "__exit__"
    return swallowed


def _await(self: Any) -> Iterator[Any]:
    return _ask(self, "run")
    yield


def _send(self: Any, value: Any) -> Any:
    raise StopIteration(_ask(self, "run"))


def _awaiting(name: str) -> Callable[..., Any]:
    run = "run next" if name == "__anext__" else "run"

    async def special(self: Any, *arguments: Any) -> Any:
        return _ask(_ask(self, "special", name, *arguments), run)

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
    "iter", "next", "getitem", "setitem", "delitem", "reversed", "hash", "str", "repr", "format",
    "bytes", "enter", "aiter",
)  # fmt: skip
SPECIAL: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": _forwarded(f"__{name}__") for name in _FORWARDED},
    **{f"__{name}__": _measured(f"__{name}__") for name in _MEASURES},
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


class TestPeer(Peer):
    """The test's end. It sends `{"function": [number, name]}`, `{"iterator": number}` and
    `{"namedtuple": [name, fields, values]}`; other objects of its own it cannot send."""

    __test__ = False

    def __init__(self, channel: Channel, expected: set[str]) -> None:
        super().__init__(channel)
        self.asked = 0
        self.doubt = ""
        """The special method by whose answer alone the test could pass."""
        self.failure: BaseException | None = None
        """An assertion that has failed in a function that the program called."""
        self.unsendable = ""
        """What the test has tried to pass, and could not."""
        self._expected = expected
        self._classes: dict[int, RemoteType] = {}

    def ask(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
        """The program's answer. Raises what it raised, EndedError, or UnsendableError."""
        self.asked += 1
        names = {name: self.encode(value) for name, value in keywords.items()}
        raw = [self.encode(value) for value in arguments]
        return self.request([operation, raw, names], [*arguments, *keywords.values()])

    def state(self, value: Any) -> Any:
        """What an object holds; never equal to that of another if it cannot be told."""
        try:
            return self.decode(json.loads(self.ask("state", value)))
        except Exception:
            return object()

    def perform(self, kind: str, *target: Any) -> Callable[..., Any]:
        """See Peer. Only what this side has passed, and only to be called."""
        (number,) = target
        return self._exported[number]

    def raised(self, error: BaseException, message: list[Any]) -> BaseException:
        """See Peer. An exception of the protocol becomes an error of the program, unless it
        belongs to the operation, or the test catches it."""
        operation, arguments = message[0], message[1]
        ends = _ENDS.get(arguments[1] if operation == "special" else operation)
        if not issubclass(type(error), BaseException):
            return ProgramError("raised what is no exception")
        # By Python's own classes: the program may name one of its own as it likes.
        names = {kind.__name__ for kind in _PROTOCOL if isinstance(error, kind)}
        if not names or names & self._expected:
            return error
        if ends and isinstance(error, ends):
            return error
        kind = ProgramError if isinstance(error, Exception) else ProgramExit
        return kind(f"{type(error).__name__}: {error}")

    def failed(self, error: BaseException) -> None:
        """See Peer."""
        if isinstance(error, AssertionError):
            self.failure = error

    def encode_own(self, value: Any) -> Any:
        """See Peer."""
        link = link_of(value)
        if link is not None:
            return {"yours": link.number}
        if isinstance(value, BaseException):
            return self.encode_error(value)
        kind = type(value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {"namedtuple": [kind.__name__, kind._fields, [self.encode(v) for v in value]]}
        base = base_of(kind)
        if base:
            return encode_as(base, self.encode, value)
        if kind.__module__ == "numpy" and hasattr(value, "tolist"):
            return self.encode(value.tolist())
        if callable(value):
            return {"function": [self.export(value), getattr(value, "__name__", "function")]}
        if isinstance(value, Iterator) and not hasattr(value, "read"):
            return {"iterator": self.export(_Taking(value))}
        self.unsendable = f"a test cannot pass {kind.__name__} to the program"
        raise UnsendableError(self.unsendable)

    def encode_error(self, error: BaseException) -> Any:
        """See Peer."""
        link = link_of(error)
        return super().encode_error(error) if link is None else {"yours": link.number}

    def error_number(self, error: BaseException) -> int | None:
        """See Peer."""
        return self.export(error)

    def decode_array(self, content: Any) -> Any:
        """An array of numpy's."""
        kind, values = content
        return importlib.import_module("numpy").array(self.decode(values), kind)

    def decode_class(self, number: int) -> RemoteType:
        """The stand-in for a class."""
        if number not in self._classes:
            wanted = [*SPECIAL]
            about = self.request(["describe", [{"yours": number}, wanted], {}], [None, wanted])
            self._classes[number] = self._made(number, about)
        return self._classes[number]

    def _made(self, number: int, about: dict[str, Any]) -> RemoteType:
        base: Any = about["base"] if isinstance(about["base"], type) else None
        names = {name: SPECIAL[name] for name in about["methods"] if name in SPECIAL}
        space: dict[str, Any] = {"_link": Link(self, number, base), **names}
        name = str(about["name"])
        looks = KINDS.get(name) or (base if base not in IMMUTABLE else None)
        if looks:
            space.update(__class__=property(lambda _: looks), __doc__=_attribute("__doc__"))
        if looks is types.CoroutineType:
            space.update(send=_send, throw=_forwarded("throw"), close=lambda self: None)
        elif looks in (types.GeneratorType, types.AsyncGeneratorType):
            space.update({each: _method(each) for each in _SEND})
        if base in IMMUTABLE:
            space["__hash__"] = base.__hash__
            space.update({each: _hiding(each) for each in about["hides"]})
        kept = [one for one in about["bases"] if _kept(one)]
        try:
            return RemoteType(name, (*kept, *([] if _remote(kept) else [Remote])), space)
        except TypeError:
            return RemoteType(name, (Remote,), space)

    def decode_mine(self, content: Any) -> Any:
        """The stand-in for an object."""
        number, kind, plain = content
        if number not in self._stand_ins:
            made = self.decode_class(kind)
            link = made._link
            assert link is not None
            found: Any
            if issubclass(made, BaseException):
                found = _exception(made, [self.decode(value) for value in plain])
            elif link.base in IMMUTABLE:
                found = link.base.__new__(made, self.decode(plain))
            else:
                found = object.__new__(made)
            object.__setattr__(found, "_Remote__link", Link(self, number, link.base))
            self.learn(number, found)
        return self._stand_ins[number]


def _exception(made: type[BaseException], arguments: list[Any]) -> BaseException:
    error = made.__new__(made, *arguments)
    known = next(base for base in made.__mro__ if not isinstance(base, RemoteType))
    with contextlib.suppress(TypeError):
        # Sets what the built-in type keeps apart, as `value` of StopIteration.
        known.__init__(error, *arguments)  # type: ignore[misc]
    return error


class _Taking:
    """Takes from an iterator; an empty list at its end."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def __call__(self) -> list[Any]:
        for value in self._values:
            return [value]
        return []


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        return _ask(self, "getattr", name)(*arguments)

    return method


def _kept(base: Any) -> bool:
    """Whether a base of the program's class is one here, too."""
    if isinstance(base, RemoteType):
        return True
    return isinstance(base, type) and (base in IMMUTABLE or issubclass(base, BaseException))


def _remote(bases: list[type]) -> bool:
    return any(isinstance(base, RemoteType) for base in bases)
