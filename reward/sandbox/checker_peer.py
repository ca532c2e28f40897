"""The test's end of the socket: asks the program, and makes stand-ins for its objects."""

import contextlib
import importlib
import json
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from reward.sandbox.checker_source import Catch
from reward.sandbox.peer_protocol import Channel, Peer, UnsendableError
from reward.sandbox.special import SPECIAL, forwarded, send
from reward.sandbox.stand_ins import Link, Remote, RemoteType, ask, attribute, link_of
from reward.sandbox.values import (
    CONTAINERS,
    IMMUTABLE,
    KEPT,
    KINDS,
    base_of,
    encode_as,
    overwrite,
)

_PROTOCOL = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions with a meaning for Python itself: raised by a call, they would just end a `map`."""
_ENDS = {"__next__": StopIteration, "run next": StopAsyncIteration}
"""Exceptions that end an operation of this name: it has no more items to give."""
SHARED = 16
"""The number of containers of the program's objects that are kept up to date at a time."""
_OWN = 3
"""References to a container that only this module holds: the list of passed values, and two for
counting."""
_SEND = ("send", "throw", "close")


class ProgramError(Exception):
    """An exception of the protocol that the program has raised."""


class ProgramExit(BaseException):
    """An exception of the program that does not derive from Exception."""


class CheckerPeer(Peer):
    """The test's end. It sends `{"function": [number, name]}`, `{"iterator": number}` and
    `{"namedtuple": [name, fields, values]}`. It cannot send other objects of the test."""

    __test__ = False

    def __init__(self, channel: Channel, caught: list[Catch]) -> None:
        super().__init__(channel)
        self.asked = 0
        self.doubt = ""
        self.unlike = ""
        self.failure: BaseException | None = None
        """A failed assertion in a function that the program called."""
        self.unsendable = ""
        """An object that the test tried to pass, and that cannot be sent."""
        self.copied = False
        """Whether the program has returned a container, which is a copy in the test."""
        self.replaced = False
        """Whether a call has changed a container in a container, while the test also holds the
        inner container."""
        self._caught = caught
        self._passed: deque[Any] = deque(maxlen=KEPT)
        self._classes: dict[int, RemoteType] = {}
        self._shared: dict[int, list[Any]] = {}

    def ask(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
        self.asked += 1
        self._update()
        names = {name: self.encode(value) for name, value in keywords.items()}
        raw = [self.encode(value) for value in arguments]
        given = [*arguments, *keywords.values()]
        if operation == "call":
            self._passed.extend(value for value in given if type(value) in CONTAINERS)
        result = self.request([operation, raw, names], given)
        if operation in ("call", "getattr", "special"):
            self.copied = self.copied or isinstance(result, (*CONTAINERS, tuple))
        return result

    def kept(self) -> str:
        """Return why copies may have made a test fail: the program has kept a container that was
        passed to it, and one of the two copies has changed since. Return an empty string if that is
        not so."""
        held = [sys.getrefcount(value) > _OWN for value in self._passed]
        now = [self.encode(value) for value in self._passed]
        for mine, theirs, known in zip(now, json.loads(self.ask("kept")), held, strict=True):
            if known and theirs is not None and theirs != mine:
                return "the program has kept a container, which has changed since it was passed"
        return ""

    def change(self, old: Any, new: Any) -> None:
        """Implements `Peer.change`. It replaces the containers in `old`. Other references to them
        do not see the change."""
        inner = old.values() if isinstance(old, dict) else old if isinstance(old, list) else ()
        self.replaced = self.replaced or any(
            type(container) in CONTAINERS and sys.getrefcount(container) > _OWN
            for container in inner
        )
        super().change(old, new)

    def _update(self) -> None:
        """Send the program the test's changes to containers of the program's objects."""
        for number, known in list(self._shared.items()):
            now = self.encode(known[0])
            if now != known[1]:
                known[1] = now
                self.request(["update", [{"yours": number}, now], {}], [None, None])

    def decode_shared(self, content: Any) -> Any:
        """Return the container that is an attribute: the same object each time, with the current
        content."""
        number, raw = content
        new = self.decode(raw)
        known = self._shared.pop(number, [new])
        if known[0] is not new:
            overwrite(known[0], new)
        while len(self._shared) >= SHARED:
            del self._shared[next(iter(self._shared))]
        self._shared[number] = [known[0], self.encode(known[0])]
        return known[0]

    def state(self, value: Any) -> Any:
        try:
            return self.decode(json.loads(self.ask("state", value)))
        except Exception:
            return object()

    def perform(self, kind: str, *target: Any) -> Callable[..., Any]:
        """Implements `Peer.perform`: calls of functions that this side has passed."""
        (number,) = target
        return self._exported[number]

    def raised(self, error: BaseException, message: list[Any]) -> BaseException:
        """Implements `Peer.raised`. An exception of the protocol becomes an error of the program,
        unless it belongs to the operation, or the test catches it."""
        operation, arguments = message[0], message[1]
        ends = _ENDS.get(arguments[1] if operation == "special" else operation)
        if not issubclass(type(error), BaseException):
            return ProgramError("raised what is no exception")
        # The check uses Python's own classes: the program may give its own class any name.
        names = {kind.__name__ for kind in _PROTOCOL if isinstance(error, kind)}
        if not names or names & self._expected():
            return error
        if ends and isinstance(error, ends):
            return error
        kind = ProgramError if isinstance(error, Exception) else ProgramExit
        return kind(f"{type(error).__name__}: {error}")

    def _expected(self) -> set[str]:
        """Return the names of exceptions that the test catches at its current line."""
        names: set[str] = set()
        frame = sys._getframe()
        while frame := frame.f_back:  # type: ignore[assignment]
            if frame.f_code.co_filename == "tests.py":
                at = frame.f_lineno
                names.update(
                    catch.name for catch in self._caught if catch.first <= at <= catch.last
                )
        return names

    def failed(self, error: BaseException) -> None:
        if isinstance(error, AssertionError):
            self.failure = error

    def encode_own(self, value: Any) -> Any:
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
        link = link_of(error)
        return super().encode_error(error) if link is None else {"yours": link.number}

    def error_number(self, error: BaseException) -> int | None:
        return self.export(error)

    def decode_array(self, content: Any) -> Any:
        kind, values = content
        return importlib.import_module("numpy").array(self.decode(values), kind)

    def decode_class(self, number: int) -> RemoteType:
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
            space.update(__class__=property(lambda _: looks), __doc__=attribute("__doc__"))
        if looks is types.CoroutineType:
            space.update(send=send, throw=forwarded("throw"), close=lambda self: None)
        elif looks in (types.GeneratorType, types.AsyncGeneratorType):
            space.update({each: method(each) for each in _SEND})
        if base in IMMUTABLE:
            space["__hash__"] = base.__hash__
            space.update({each: hiding(each) for each in about["hides"] if each[0] != "_"})
        kept = [parent for parent in about["bases"] if _kept(parent)]
        try:
            return RemoteType(name, (*kept, *([] if _remote(kept) else [Remote])), space)
        except TypeError:
            return RemoteType(name, (Remote,), space)

    def decode_mine(self, content: Any) -> Any:
        number, kind, plain = content
        if number not in self._stand_ins:
            made = self.decode_class(kind)
            link = made._link
            assert link is not None
            stand_in: Any
            if issubclass(made, BaseException):
                stand_in = _exception(made, [self.decode(value) for value in plain])
            elif link.base in IMMUTABLE:
                stand_in = link.base.__new__(made, self.decode(plain))
            else:
                stand_in = object.__new__(made)
            object.__setattr__(stand_in, "_Remote__link", Link(self, number, link.base))
            self.learn(number, stand_in)
        return self._stand_ins[number]


def _exception(made: type[BaseException], arguments: list[Any]) -> BaseException:
    error = made.__new__(made, *arguments)
    known = next(base for base in made.__mro__ if not isinstance(base, RemoteType))
    with contextlib.suppress(TypeError):
        # This sets the state of the built-in type, such as `value` of StopIteration.
        known.__init__(error, *arguments)  # type: ignore[misc]
    return error


class _Taking:
    """Take the next item of an iterator, in a list. The list is empty at the end."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def __call__(self) -> list[Any]:
        for value in self._values:
            return [value]
        return []


def method(name: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        return ask(self, "getattr", name)(*arguments)

    return method


def _kept(base: Any) -> bool:
    """Tell whether a base of the program's class is also a base class here."""
    if isinstance(base, RemoteType):
        return True
    return isinstance(base, type) and (base in IMMUTABLE or issubclass(base, BaseException))


def _remote(bases: list[type]) -> bool:
    return any(isinstance(base, RemoteType) for base in bases)


def hiding(name: str) -> property:
    """Return a property for the stand-in of a subclass of `int`, `list` and the like, whose objects
    have a field of the name of a method. The property is the field if its value is plain, and
    otherwise the method."""

    def hiding(self: Any) -> Any:
        link = link_of(self)
        assert link is not None
        held = ask(self, "getattr", name)
        plain = link.made or (link_of(held) is None and not callable(held))
        return held if plain else getattr(link.base, name).__get__(self)

    return property(hiding)
