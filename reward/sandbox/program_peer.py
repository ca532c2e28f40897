"""The program's end of the socket: keeps the program's objects, and carries out the test's requests
on them.

`reward.sandbox.peer_protocol` describes the messages.
"""

import importlib
import itertools
import json
import operator
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from reward.sandbox.peer_protocol import Channel, EndedError, Peer
from reward.sandbox.values import (
    CONTAINERS,
    IMMUTABLE,
    KEPT,
    TYPES,
    base_of,
    encode_as,
    encode_plain,
    overwrite,
)

_OWN = 3
"""References to a container that the program does not hold: see `checker_peer`."""
SHARED_ITEMS = 1000
"""The largest container that is shared as an attribute. A larger one is copied into the test."""


class ProgramPeer(Peer):
    """The program's end. It sends `{"class": number}`, and objects as `{"mine": [number, number of
    the class, plain value or arguments]}`."""

    def __init__(self, channel: Channel, names: dict[str, Any]) -> None:
        super().__init__(channel)
        self._foreign: dict[int, int] = {}
        self._operations: dict[str, Callable[..., Any]] = {
            **_OPERATIONS,
            "names": lambda wanted: {name: names[name] for name in wanted if name in names},
            "describe": self._describe,
            "state": self._state,
            "call": self._call,
            "kept": self._kept,
        }
        self._passed: deque[Any] = deque(maxlen=KEPT)

    def serve_all(self) -> None:
        """Answer requests until the other side has ended."""
        while True:
            try:
                kind, *rest = self._channel.receive()
            except EndedError:
                return
            self.serve(kind, *rest)

    def perform(self, kind: str, *target: Any) -> Callable[..., Any]:
        return self._operations[kind]

    def learn(self, number: int, stand_in: Any) -> None:
        super().learn(number, stand_in)
        self._foreign[id(stand_in)] = number

    def encode_own(self, value: Any) -> Any:
        if id(value) in self._foreign:
            return {"yours": self._foreign[id(value)]}
        kind = type(value)
        if kind is _Shared:
            return {"shared": [self.export(value.value), self.encode(value.value)]}
        if kind is _Plain:
            value = value.value
            return encode_as(base_of(type(value)) or object, self.encode, value)
        if kind.__module__ == "numpy" and hasattr(value, "tolist"):
            plain = self.encode(value.tolist())
            return {"array": [value.dtype.str, plain]} if value.shape else plain
        if isinstance(value, type):
            return {"class": self.export(value)}
        if isinstance(value, BaseException):
            return self.encode_error(value)
        base = base_of(kind)
        plain = encode_as(base, self.encode, value) if base in IMMUTABLE else None
        return {"mine": [self.export(value), self.export(kind), plain]}

    def encode_error(self, error: BaseException) -> Any:
        """Implements `Peer.encode_error`. Classes of the program go by number."""
        if id(error) in self._foreign:
            return {"yours": self._foreign[id(error)]}
        if TYPES.get(type(error).__name__) is type(error):
            return super().encode_error(error)
        arguments = [self.encode(value) for value in error.args]
        return {"mine": [self.export(error), self.export(type(error)), arguments]}

    def decode_function(self, content: Any) -> Any:
        number, name = content
        if number not in self._stand_ins:

            def stand_in(*arguments: Any, **keywords: Any) -> Any:
                raw = [self.encode(value) for value in arguments]
                names = {key: self.encode(value) for key, value in keywords.items()}
                given = [*arguments, *keywords.values()]
                return self.request(["back", number, raw, names], given)

            stand_in.__name__ = stand_in.__qualname__ = name
            self.learn(number, stand_in)
        return self._stand_ins[number]

    def decode_iterator(self, content: Any) -> Any:
        return _items(self.decode_function([content, "next"]))

    def decode_namedtuple(self, content: Any) -> Any:
        """Decode a named tuple of a class of the test."""
        name, fields, values = content
        kind = importlib.import_module("collections").namedtuple(name, fields)
        return kind(*map(self.decode, values))

    def _call(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        given = [*arguments, *keywords.values()]
        containers = [value for value in given if type(value) in CONTAINERS]
        self._passed.extend([value, False] for value in containers)
        result = function(*arguments, **keywords)
        if containers and isinstance(result, Iterator | Coroutine | AsyncIterator):
            # A generator runs later, and has released its arguments at its end.
            for entry in self._passed:
                entry[1] = entry[1] or any(entry[0] is value for value in containers)
        return result

    def _kept(self) -> str:
        """Return, as JSON, the containers of the test that the program still holds; null for the
        others."""
        held = [later or sys.getrefcount(value) > _OWN for value, later in self._passed]
        values = zip(self._passed, held, strict=True)
        return json.dumps([self.encode(entry[0]) if known else None for entry, known in values])

    def _describe(self, kind: type, wanted: list[str]) -> dict[str, Any]:
        """Describe a class for its stand-in: the special methods of `wanted` that the class has."""
        base = base_of(kind)
        defined = {
            name for name in wanted if _defined(kind, name) != _defined(base or object, name)
        }
        if base and base not in IMMUTABLE:
            defined = {name for name in wanted if _defined(kind, name) != _defined(object, name)}
        return {
            "name": kind.__name__,
            "bases": [extended for extended in kind.__bases__ if extended is not object],
            "methods": sorted(name for name in defined if _defined(kind, name) is not None),
            "base": base,
            "hides": [name for name in dir(base) if _hidden(kind, name, base)] if base else [],
        }

    def _state(self, value: Any) -> str:
        """Return everything that is reachable from an object, as JSON of plain values."""
        seen: dict[int, int] = {}

        def state(value: Any) -> Any:
            return encode_plain(state, encode_object, value)

        def encode_object(value: Any) -> Any:
            if id(value) in seen:
                return {"tuple": ["seen", seen[id(value)]]}
            seen[id(value)] = len(seen)
            base, names = base_of(type(value)), sorted(_attributes(value))
            if not base and not names and _defined(type(value), "__eq__") is object.__eq__:
                return {"tuple": ["object", self.export(value)]}
            plain = encode_as(base, state, value) if base else None
            parts = [[name, state(getattr(value, name, None))] for name in names]
            return {"tuple": [self.export(type(value)), plain, parts]}

        return json.dumps(state(value))


class _Plain:
    """A wrapper: send the object as the plain type that its class extends."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Shared(_Plain):
    """A wrapper: send the container as shared. The test may change it, as an attribute of an
    object."""


def _attribute(value: Any, name: str) -> Any:
    attribute = getattr(value, name)
    return (
        _Shared(attribute)
        if type(attribute) in CONTAINERS and len(attribute) < SHARED_ITEMS
        else attribute
    )


def _items(take: Callable[[], list[Any]]) -> Iterator[Any]:
    while some := take():
        yield some[0]


def _defined(kind: type, name: str) -> Any:
    return next((vars(parent)[name] for parent in kind.__mro__ if name in vars(parent)), None)


def _hidden(kind: type, name: str, base: type) -> bool:
    return not name.startswith("__") and _defined(kind, name) != _defined(base, name)


def _attributes(value: Any) -> set[str]:
    slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    names = {name for some in slots for name in ([some] if isinstance(some, str) else some)}
    return {*getattr(value, "__dict__", ()), *(names - {"__dict__", "__weakref__"})}


def _special(value: Any, name: str, *arguments: Any) -> Any:
    """Call the special method as Python's own syntax does."""
    if name in _SYNTAX:
        return _SYNTAX[name](value, *arguments)
    method = getattr(type(value), name, None)
    return NotImplemented if method is None else method(value, *arguments)


def _exit(value: Any, error: BaseException | None) -> bool:
    return bool(type(value).__exit__(value, error and type(error), error, None))


def _same_to_all(value: Any, name: str, unseen: list[Any]) -> bool:
    """Tell whether a comparison is true for unknown objects.

    The objects are of no class, of a new class, and of the value's own class with other values; or
    the objects `unseen`, if there are any.
    """
    strangers = [object(), type("Unseen", (), {})(), *_other_of(value)]
    if any(_true(value, name, stranger) for stranger in strangers):
        return True
    return bool(unseen) and all(_true(value, name, stranger) for stranger in unseen)


def _true(value: Any, name: str, other: Any) -> bool:
    """Tell whether the answer says that both belong together: `!=` counts with `==`."""
    try:
        return _special(value, name, other) is True
    except Exception:
        return False


def _other_of(value: Any) -> list[Any]:
    """Return an object of the same class whose attributes equal no other object. Return None for a
    plain type."""
    try:
        other = object.__new__(type(value))
        for name in _attributes(value):
            object.__setattr__(other, name, object())
    except (TypeError, AttributeError):
        return []
    return [other]


_LOOPS: list[Any] = []


def _run(value: Any) -> Any:
    """Run a coroutine to its end at once."""
    if not _LOOPS:
        _LOOPS.append(importlib.import_module("asyncio").new_event_loop())

    async def awaited() -> Any:
        return await value

    return _LOOPS[0].run_until_complete(awaited())


_SYNTAX: dict[str, Callable[..., Any]] = {
    "__iter__": iter,
    "__next__": next,
    "__len__": len,
    "__bool__": bool,
    "__contains__": operator.contains,
    "__getitem__": operator.getitem,
    "__hash__": hash,
    "__str__": str,
    "__repr__": repr,
    "__reversed__": reversed,
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "getattr": _attribute,
    "update": overwrite,
    "setattr": setattr,
    "delattr": delattr,
    "special": _special,
    "exit": _exit,
    "same to all": _same_to_all,
    "plain": _Plain,
    "copy": lambda value, how: getattr(importlib.import_module("copy"), how)(value),
    "run": _run,
    "run next": _run,
    "count": lambda value, most: sum(1 for _ in itertools.islice(value, most)),
}
"""The requests that a program answers. A test answers only calls of the functions it has passed."""
