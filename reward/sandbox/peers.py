"""How a test calls functions of the program under test, which runs in another process.

Values travel as data (`reward.sandbox.values`): nothing runs when it is read. What else the program
returns stays there, and the test gets a stand-in (`reward.sandbox.stand_ins`). So a test compares
plain values of its own, whatever the program has overridden.

One message is a length and JSON. Requests: `[operation, arguments, keywords]`, or
`["back", number, arguments, keywords]` for a function that the test has passed. Replies:
`["ok", value]`, `["ok", value, arguments as the call left them]`, `["raise", error]`.

Beside plain values, messages hold `{"yours": number}` for what the receiver has exported,
`{"error": [type, arguments, number]}` for exceptions, and what each side alone sends: see
`ProgramPeer` and `stand_ins.TestPeer`.
"""

import importlib
import itertools
import json
import operator
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from reward.sandbox.values import (
    CONTAINERS,
    IMMUTABLE,
    TYPES,
    base_of,
    decode_plain,
    encode_as,
    encode_plain,
    overwrite,
)

MAX_MESSAGE = 64 << 20


class EndedError(BaseException):
    """The other side has ended. No Exception: a test that expects one does not expect this."""


class UnsendableError(BaseException):
    """A test does what its process cannot do for the program: the test cannot be used here."""


class Channel:
    """Messages over a socket that this process has as `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, message: Any) -> None:
        """Raises EndedError."""
        body = json.dumps(message).encode()
        data = memoryview(len(body).to_bytes(4, "little") + body)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            raise EndedError from None

    def receive(self) -> Any:
        """Raises EndedError; ValueError or RecursionError for what is no message."""
        size = int.from_bytes(self._read(4), "little")
        if size > MAX_MESSAGE:
            raise ValueError(f"a message of {size} bytes")
        return json.loads(self._read(size))

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.read(self._fd, min(size, 1 << 20))
            except OSError:
                part = b""
            if not part:
                raise EndedError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Peer:
    """One end: asks the other, and answers what it is asked meanwhile."""

    def __init__(self, channel: Channel) -> None:
        self.ended = False
        self._channel = channel
        self._exported: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._stand_ins: dict[int, Any] = {}

    def request(self, message: list[Any], arguments: list[Any]) -> Any:
        """The answer to a request whose `arguments` may be changed by it. Raises what the other
        side raised, or EndedError."""
        self._channel.send(message)
        while True:
            try:
                kind, *rest = self._channel.receive()
            except EndedError:
                self.ended = True
                raise
            if kind == "ok":
                if len(rest) > 1:
                    for old, new in zip(arguments, rest[1], strict=True):
                        overwrite(old, self.decode(new))
                return self._returned(rest[0], arguments)
            if kind == "raise":
                raise self.raised(self.decode(rest[0]), message)
            self.serve(kind, *rest)

    def _returned(self, value: Any, arguments: list[Any]) -> Any:
        if isinstance(value, dict) and "argument" in value:
            return arguments[value["argument"]]
        return self.decode(value)

    def serve(self, kind: str, *request: Any) -> None:
        """Answer one request."""
        try:
            reply = self._serve(kind, *request)
        except (EndedError, UnsendableError):
            raise
        except BaseException as error:
            self.failed(error)
            reply = ["raise", self.encode_error(error)]
        self._channel.send(reply)

    def _serve(self, kind: str, *request: Any) -> list[Any]:
        names: dict[str, Any]
        *target, raw, names = request
        arguments = [self.decode(value) for value in raw]
        keywords = {name: self.decode(value) for name, value in names.items()}
        result = self.perform(kind, *target)(*arguments, **keywords)
        given, raw = [*arguments, *keywords.values()], [*raw, *names.values()]
        same = [n for n, value in enumerate(given) if value is result]
        reply: list[Any] = ["ok", None]
        if same and isinstance(result, CONTAINERS):
            reply[1] = {"argument": same[0]}
        else:
            reply[1] = self.encode(result)
        after = [
            self.encode(v) if _copied(v, old) else None for v, old in zip(given, raw, strict=True)
        ]
        if any(new is not None and new != old for old, new in zip(raw, after, strict=True)):
            reply.append(after)
        return reply

    def encode(self, value: Any) -> Any:
        """`value` as JSON has it: scalars and lists as they are, the rest as {kind: content}."""
        return encode_plain(self.encode, self.encode_own, value)

    def decode(self, value: Any) -> Any:
        """What `encode` was given on the other side. Raises ValueError, TypeError, …"""
        if isinstance(value, list):
            return [self.decode(part) for part in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "yours":
            return self._exported[content]
        if kind == "error":
            return self._decode_error(*content)
        decoder = getattr(self, f"decode_{kind}", None)
        return decoder(content) if decoder else decode_plain(self.decode, kind, content)

    def export(self, value: Any) -> int:
        """The number by which the other side knows `value`: one for each object."""
        # Python makes an object of a method each time that one is looked up.
        owner = getattr(value, "__self__", None) if isinstance(value, _METHODS) else None
        key = id(value) if owner is None else (id(owner), value.__name__)
        if key not in self._numbers:
            self._numbers[key] = len(self._exported)
            self._exported.append(value)
        return self._numbers[key]

    def encode_error(self, error: BaseException) -> Any:
        """An exception: its built-in type, and its arguments."""
        kind = next(base for base in type(error).__mro__ if TYPES.get(base.__name__) is base)
        try:
            arguments = [self.encode(value) for value in error.args]
        except UnsendableError:
            arguments = [_message(error)]
        return {"error": [kind.__name__, arguments, self.error_number(error)]}

    def _decode_error(self, name: str, arguments: list[Any], number: int | None) -> BaseException:
        kind = TYPES[name]
        if not issubclass(kind, BaseException):
            raise TypeError(f"{name} is no exception")
        error = self._stand_ins.get(-1 if number is None else number)
        if error is None:
            decoded = [self.decode(value) for value in arguments]
            try:
                error = kind(*decoded)
            except TypeError:
                # Some built-in exceptions take other arguments than they keep.
                error = RuntimeError(f"{name}: {decoded}")
            if number is not None:
                self.learn(number, error)
        return error

    def learn(self, number: int, stand_in: Any) -> None:
        """Remember what stands in for the other side's object."""
        self._stand_ins[number] = stand_in

    def perform(self, kind: str, *target: Any) -> Callable[..., Any]:
        """What answers this request."""
        raise NotImplementedError

    def encode_own(self, value: Any) -> Any:
        """`value`, which is not plain."""
        raise NotImplementedError

    def error_number(self, error: BaseException) -> int | None:
        """By which number the other side may give the exception back."""
        return None

    def raised(self, error: BaseException, message: list[Any]) -> BaseException:
        """What to raise for the other side's exception."""
        return error

    def failed(self, error: BaseException) -> None:
        """Told when a request of the other side raises."""


def _copied(value: Any, raw: Any) -> bool:
    """Whether what came as `raw` is a copy of a container of the other side's."""
    known = isinstance(raw, dict) and ("mine" in raw or "yours" in raw)
    return isinstance(value, CONTAINERS) and not known


_METHODS = (types.MethodType, types.BuiltinMethodType)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return ""


class ProgramPeer(Peer):
    """The program's end. It sends `{"class": number}`, and objects as
    `{"mine": [number, number of the class, plain value or arguments]}`."""

    def __init__(self, channel: Channel, names: dict[str, Any]) -> None:
        super().__init__(channel)
        self._foreign: dict[int, int] = {}
        self._operations: dict[str, Callable[..., Any]] = {
            **_OPERATIONS,
            "names": lambda wanted: {name: names[name] for name in wanted if name in names},
            "describe": self._describe,
            "state": self._state,
        }

    def serve_all(self) -> None:
        """Answer until the other side has ended."""
        while True:
            try:
                kind, *rest = self._channel.receive()
            except EndedError:
                return
            self.serve(kind, *rest)

    def perform(self, kind: str, *target: Any) -> Callable[..., Any]:
        """See Peer."""
        return self._operations[kind]

    def learn(self, number: int, stand_in: Any) -> None:
        """See Peer."""
        super().learn(number, stand_in)
        self._foreign[id(stand_in)] = number

    def encode_own(self, value: Any) -> Any:
        """See Peer."""
        if id(value) in self._foreign:
            return {"yours": self._foreign[id(value)]}
        kind = type(value)
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
        """See Peer. Classes of the program's own go by number."""
        if id(error) in self._foreign:
            return {"yours": self._foreign[id(error)]}
        if TYPES.get(type(error).__name__) is type(error):
            return super().encode_error(error)
        arguments = [self.encode(value) for value in error.args]
        return {"mine": [self.export(error), self.export(type(error)), arguments]}

    def decode_function(self, content: Any) -> Any:
        """A function of the test's, or an iterator."""
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
        """An iterator of the test's."""
        return _items(self.decode_function([content, "next"]))

    def decode_namedtuple(self, content: Any) -> Any:
        """A named tuple of a class of the test's."""
        name, fields, values = content
        kind = importlib.import_module("collections").namedtuple(name, fields)
        return kind(*map(self.decode, values))

    def _describe(self, kind: type, wanted: list[str]) -> dict[str, Any]:
        """What a stand-in for the class needs: which of the special methods `wanted` it has."""
        base = base_of(kind)
        own = {name for name in wanted if _defined(kind, name) != _defined(base or object, name)}
        if base and base not in IMMUTABLE:
            own = {name for name in wanted if _defined(kind, name) != _defined(object, name)}
        return {
            "name": kind.__name__,
            "bases": [one for one in kind.__bases__ if one is not object],
            "methods": sorted(name for name in own if _defined(kind, name) is not None),
            "base": base,
            "hides": [name for name in dir(base) if _hidden(kind, name, base)] if base else [],
        }

    def _state(self, value: Any) -> str:
        """All that is reachable from an object, as JSON of plain values."""
        seen: dict[int, int] = {}

        def state(value: Any) -> Any:
            return encode_plain(state, own, value)

        def own(value: Any) -> Any:
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
    """Says that an object is to be sent as the plain type that its class extends."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _items(take: Callable[[], list[Any]]) -> Iterator[Any]:
    while some := take():
        yield some[0]


def _defined(kind: type, name: str) -> Any:
    return next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), None)


def _hidden(kind: type, name: str, base: type) -> bool:
    return not name.startswith("__") and _defined(kind, name) != _defined(base, name)


def _attributes(value: Any) -> set[str]:
    slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    names = {name for some in slots for name in ([some] if isinstance(some, str) else some)}
    return {*getattr(value, "__dict__", ()), *(names - {"__dict__", "__weakref__"})}


def _special(value: Any, name: str, *arguments: Any) -> Any:
    """The special method, as Python's own syntax calls it."""
    if name in _SYNTAX:
        return _SYNTAX[name](value, *arguments)
    method = getattr(type(value), name, None)
    return NotImplemented if method is None else method(value, *arguments)


def _exit(value: Any, error: BaseException | None) -> bool:
    return bool(type(value).__exit__(value, error and type(error), error, None))


def _same_to_all(value: Any, name: str) -> bool:
    """Whether a comparison is true for an object that nobody has seen."""
    try:
        return _special(value, name, object()) is True
    except Exception:
        return False


_LOOPS: list[Any] = []


def _run(value: Any) -> Any:
    """What is awaited gives, at once."""
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
    "call": lambda function, *arguments, **keywords: function(*arguments, **keywords),
    "getattr": getattr,
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
"""What a program answers to. Tests answer to nothing but calls of what they have passed."""
