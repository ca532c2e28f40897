"""The protocol by which a test calls functions of the program under test, in another process.

Values travel as data (`reward.sandbox.values`): reading them runs no code. All other objects of the
program stay in its process, and the test gets a stand-in (`reward.sandbox.stand_ins`). So a test
compares plain values of its own, whatever the program has overridden.

A message is a length and JSON. Requests are `[operation, arguments, keywords]`, or `["back",
number, arguments, keywords]` for a function that the test has passed. Replies are `["ok", value]`,
`["ok", value, arguments as the call left them]`, `["raise", error]`. Messages hold plain values,
`{"yours": number}` for exports of the receiver, `{"error": [type, arguments, number]}` for
exceptions, and the kinds that each side alone sends: see `program_peer` and `checker_peer`.
"""

import json
import os
import types
from collections.abc import Callable
from typing import Any

from reward.sandbox.values import CONTAINERS, TYPES, decode_plain, encode_plain, overwrite

MAX_MESSAGE = 64 << 20


class EndedError(BaseException):
    """The other side has ended. Not derived from Exception: a test that expects an Exception does
    not expect this one."""


class UnsendableError(BaseException):
    """A test does what its process cannot do for the program: the test cannot be used here."""


class Channel:
    """Messages over the socket with descriptor `fd`."""

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
        """Return the next message. Raises EndedError; ValueError or RecursionError for an invalid
        message."""
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
    """One end: asks the other end, and meanwhile answers its requests."""

    def __init__(self, channel: Channel) -> None:
        self.ended = False
        self._channel = channel
        self._exported: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._stand_ins: dict[int, Any] = {}

    def request(self, message: list[Any], arguments: list[Any]) -> Any:
        """Return the answer to a request, which may change `arguments`. Raises the other side's
        exception, or EndedError."""
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
                        self.change(old, self.decode(new))
                return self._returned(rest[0], arguments)
            if kind == "raise":
                raise self.raised(self.decode(rest[0]), message)
            self.serve(kind, *rest)

    def _returned(self, value: Any, arguments: list[Any]) -> Any:
        if isinstance(value, dict) and "argument" in value:
            return arguments[value["argument"]]
        return self.decode(value)

    def serve(self, kind: str, *request: Any) -> None:
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
        """Return `value` as JSON: scalars and lists as they are, everything else as {kind:
        content}."""
        return encode_plain(self.encode, self.encode_own, value)

    def decode(self, value: Any) -> Any:
        """Return the value that the other side encoded. Raises ValueError, TypeError, …"""
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
        """Return the number by which the other side knows `value`, one for each object."""
        # Python makes a new object each time that a method is looked up.
        owner = getattr(value, "__self__", None) if isinstance(value, _METHODS) else None
        key = id(value) if owner is None else (id(owner), value.__name__)
        if key not in self._numbers:
            self._numbers[key] = len(self._exported)
            self._exported.append(value)
        return self._numbers[key]

    def encode_error(self, error: BaseException) -> Any:
        """Encode an exception: its built-in type, and its arguments."""
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

    def change(self, old: Any, new: Any) -> None:
        """Give `old`, an argument, the content that the other side has given it."""
        overwrite(old, new)

    def learn(self, number: int, stand_in: Any) -> None:
        """Remember the stand-in for an object of the other side."""
        self._stand_ins[number] = stand_in

    def perform(self, kind: str, *target: Any) -> Callable[..., Any]:
        """Carry out a request, and return its answer."""
        raise NotImplementedError

    def encode_own(self, value: Any) -> Any:
        """Encode `value`, which is not plain."""
        raise NotImplementedError

    def error_number(self, error: BaseException) -> int | None:
        """Return the number under which the other side may give the exception back."""
        return None

    def raised(self, error: BaseException, message: list[Any]) -> BaseException:
        """Return the exception to raise for the other side's exception."""
        return error

    def failed(self, error: BaseException) -> None:
        """Note that a request of the other side has raised."""


def _copied(value: Any, raw: Any) -> bool:
    """Tell whether the message `raw` is a copy of a container of the other side."""
    known = isinstance(raw, dict) and ("mine" in raw or "yours" in raw)
    return isinstance(value, CONTAINERS) and not known


_METHODS = (types.MethodType, types.BuiltinMethodType)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return ""
