"""How a test calls functions of the program under test, which runs in another process.

Values travel as data, in a form that holds Python's plain types and nothing that runs when it is
read. What else the program returns stays there, and the test gets a `Remote` in its place. So a
test compares plain values of its own, whatever the program has overridden.

One message is a length and JSON. Requests: `[operation, arguments, keywords]`, or
`["back", number, arguments]` for a function that the test has passed. Replies: `["ok", value]`,
`["ok", value, arguments as the call left them]`, `["raise", kind, message]`.
"""

import builtins
import json
import operator
import os
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_MESSAGE = 64 << 20
_EXACT = 2**53
_MUTABLE = (list, dict, set, bytearray, deque)


class EndedError(BaseException):
    """The other side has ended. No Exception: a test that expects one does not expect this."""


class UnsendableError(Exception):
    """A test passes something that cannot leave its process: the test cannot be used here."""


class ProgramError(Exception):
    """What the program raised, where it is no built-in exception."""


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

    def __init__(self, channel: Channel, operations: dict[str, Callable[..., Any]]) -> None:
        self.ended = False
        self.asked = 0
        self._channel = channel
        self._operations = operations
        self._exported: list[Any] = []

    def ask(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
        """The other side's answer. Raises what it raised, or EndedError."""
        self.asked += 1
        names = {name: self.encode(value) for name, value in keywords.items()}
        self._channel.send([operation, [self.encode(value) for value in arguments], names])
        return self._answer(arguments)

    def call_back(self, number: int, *arguments: Any) -> Any:
        """Have a function of the other side called."""
        self._channel.send(["back", number, [self.encode(value) for value in arguments]])
        return self._answer(())

    def _answer(self, arguments: tuple[Any, ...]) -> Any:
        while True:
            try:
                kind, *rest = self._channel.receive()
            except EndedError:
                self.ended = True
                raise
            if kind == "ok":
                if len(rest) > 1:
                    for old, new in zip(arguments, rest[1], strict=True):
                        _overwrite(old, self.decode(new))
                return self.decode(rest[0])
            if kind == "raise":
                raise _exception(*rest)
            self.serve(kind, *rest)

    def serve_all(self) -> None:
        """Answer until the other side has ended."""
        while True:
            try:
                kind, *rest = self._channel.receive()
            except EndedError:
                return
            self.serve(kind, *rest)

    def serve(self, kind: str, *request: Any) -> None:
        """Answer one request."""
        try:
            reply = self._serve(kind, *request)
        except EndedError:
            raise
        except BaseException as error:
            reply = ["raise", type(error).__name__, _message(error)]
        self._channel.send(reply)

    def _serve(self, kind: str, *request: Any) -> list[Any]:
        if kind == "back":
            number, given = request
            # Only what this side has passed, and only to be called.
            return ["ok", self.encode(self._exported[number](*map(self.decode, given)))]
        raw, names = request
        arguments = [self.decode(value) for value in raw]
        keywords = {name: self.decode(value) for name, value in names.items()}
        reply = ["ok", self.encode(self._operations[kind](*arguments, **keywords))]
        if any(isinstance(value, _MUTABLE) for value in arguments):
            after = [self.encode(value) for value in arguments]
            if after != raw:
                reply.append(after)
        return reply

    def encode(self, value: Any) -> Any:
        """`value` as JSON has it: scalars and lists as they are, the rest as {kind: content}."""
        if value is None or value is True or value is False:
            return value
        for kind, convert in _ENCODERS:
            if isinstance(value, kind):
                return convert(self.encode, value)
        if type(value).__module__ == "numpy" and hasattr(value, "item") and not _shape(value):
            return self.encode(value.item())
        if isinstance(value, Remote):
            return {"yours": object.__getattribute__(value, "_number")}
        return {"mine": self._export(value)}

    def _export(self, value: Any) -> int:
        for number, known in enumerate(self._exported):
            if known is value:
                return number
        if not self._operations and not callable(value):
            raise UnsendableError(f"a test cannot pass {type(value).__name__} to the program")
        self._exported.append(value)
        return len(self._exported) - 1

    def decode(self, value: Any) -> Any:
        """What `encode` was given on the other side. Raises ValueError, TypeError, …"""
        if isinstance(value, list):
            return [self.decode(part) for part in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "yours":
            return self._exported[content]
        if kind == "mine":
            return self._theirs(int(content))
        return _DECODERS[kind](self.decode, content)

    def _theirs(self, number: int) -> Any:
        if self._operations:
            return lambda *arguments: self.call_back(number, *arguments)
        return Remote(self, number)


def _shape(value: Any) -> Any:
    return getattr(value, "shape", ())


def _each(encode: Callable[[Any], Any], values: Any) -> list[Any]:
    return [encode(value) for value in values]


_ENCODERS: list[tuple[Any, Callable[[Any, Any], Any]]] = [
    # Python's own text of a large integer takes quadratic time, and has a limit.
    (int, lambda _, v: int(v) if -_EXACT < v < _EXACT else {"int": hex(v)}),
    (float, lambda _, v: float(v)),
    (str, lambda _, v: "".join(v)),
    (list, _each),
    (tuple, lambda encode, v: {"tuple": _each(encode, v)}),
    (dict, lambda encode, v: {"dict": [_each(encode, pair) for pair in v.items()]}),
    (set, lambda encode, v: {"set": _each(encode, v)}),
    (frozenset, lambda encode, v: {"frozenset": _each(encode, v)}),
    (deque, lambda encode, v: {"deque": _each(encode, v)}),
    (bytes, lambda _, v: {"bytes": v.hex()}),
    (bytearray, lambda _, v: {"bytearray": v.hex()}),
    (complex, lambda _, v: {"complex": [v.real, v.imag]}),
    (range, lambda _, v: {"range": [v.start, v.stop, v.step]}),
    (Decimal, lambda _, v: {"decimal": str(v)}),
    (Fraction, lambda _, v: {"fraction": [hex(v.numerator), hex(v.denominator)]}),
]

_DECODERS: dict[str, Callable[[Any, Any], Any]] = {
    "int": lambda _, v: int(v, 16),
    "tuple": lambda decode, v: tuple(map(decode, v)),
    "dict": lambda decode, v: {decode(key): decode(value) for key, value in v},
    "set": lambda decode, v: set(map(decode, v)),
    "frozenset": lambda decode, v: frozenset(map(decode, v)),
    "deque": lambda decode, v: deque(map(decode, v)),
    "bytes": lambda _, v: bytes.fromhex(v),
    "bytearray": lambda _, v: bytearray.fromhex(v),
    "complex": lambda _, v: complex(*v),
    "range": lambda _, v: range(*v),
    "decimal": lambda _, v: Decimal(v),
    "fraction": lambda _, v: Fraction(int(v[0], 16), int(v[1], 16)),
}


def _overwrite(old: Any, new: Any) -> None:
    """Make `old` what the call has made of it: tests look at what was changed in place."""
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set | deque):
        old.clear()
        if isinstance(old, deque):
            old.extend(new)
        else:
            old.update(new)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return ""


def _exception(kind: str, message: str) -> Exception:
    """The built-in exception of that name; never one that ends the process."""
    found = getattr(builtins, str(kind), None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(str(message))
        except TypeError:
            # Its constructor wants more, as UnicodeDecodeError's does.
            pass
    return ProgramError(f"{kind}: {message}")


class Remote:
    """An object of the program's, as a test sees it. Equals nothing but itself: what the program
    calls equal does not count."""

    __slots__ = ("_number", "_peer")

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._peer.ask("call", self, *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._peer.ask("setitem", self, key, value)

    def __contains__(self, value: Any) -> bool:
        return bool(self._peer.ask("contains", self, value))

    def __iter__(self) -> Iterator[Any]:
        values = self._peer.ask("iter", self)
        while True:
            some = self._peer.ask("some", values)
            if not some:
                return
            yield some[0]

    def __next__(self) -> Any:
        return self._peer.ask("next", self)

    def __len__(self) -> int:
        return int(self._peer.ask("len", self))

    def __bool__(self) -> bool:
        return bool(self._peer.ask("bool", self))

    def __str__(self) -> str:
        return str(self._peer.ask("str", self))

    def __repr__(self) -> str:
        return str(self._peer.ask("repr", self))


def _some(values: Iterator[Any]) -> list[Any]:
    """The next value, if there is one: an exception from the program could mean anything."""
    for value in values:
        return [value]
    return []


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *arguments, **keywords: function(*arguments, **keywords),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "contains": operator.contains,
    "iter": iter,
    "some": _some,
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
}
"""What a program answers to. Tests answer to nothing but calls of what they have passed."""
