"""Stand-ins: the test's objects for objects of the program, and how far the test believes them.

A stand-in forwards to the object in the program's process. Each object has one stand-in, so that
identity holds. Each class has one stand-in class with the same special methods: `isinstance`,
`except` and `callable` keep their meaning. A subclass of int, str, tuple, … keeps its plain value
here. A subclass of list, dict, … sends its value, so that a comparison with a plain value compares
values.

The program wrote the special methods. Some of their answers could make any test pass: that `f(3) -
9` is 0, or that 9 is in `f(3)`. A test that passes by such an answer has shown nothing.
`Asks.doubt` names the method, and the verdict is an error. docs/sandbox.md has the table.
"""

from typing import Any, Protocol

from reward.sandbox.peer_protocol import UnsendableError
from reward.sandbox.values import IMMUTABLE

_PREDICATES = (
    "count", "endswith", "find", "index", "isdisjoint", "issubset", "issuperset", "rfind",
    "rindex", "startswith", "__contains__", "__eq__",
    "is_integer", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier",
    "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
)  # fmt: skip
"""Methods of plain types that a test may call with the expected value, or whose answer a test may
take for the truth."""
_ARRAYS = ("__array_function__", "__array_ufunc__", "__array_wrap__", "__array_prepare__")
"""numpy lets an object answer under these names, instead of `np.allclose`, `np.equal`, …"""
_MEMORY = ("__array_interface__", "__array_struct__")
"""numpy reads an object's memory under these names, but that memory is in another process."""


class Asks(Protocol):
    """The interface that asks the program: the test's end of the socket."""

    doubt: str
    """The special method by whose answer alone the test could pass."""

    unlike: str
    """A class name under which the test has compared an object of its own with one of the
    program."""

    def ask(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
        """Return the program's answer. Raises the program's exception, EndedError, or
        UnsendableError."""

    def state(self, value: Any) -> Any:
        """Return the content of an object. An unreadable object gets a content that equals no
        other."""


class Link:
    __slots__ = ("base", "given", "informed", "made", "number", "peer")

    def __init__(self, peer: Asks, number: int, base: Any = None) -> None:
        self.peer, self.number, self.base = peer, number, base
        self.made = False
        """Whether the test has made the object, as `Name(…)` of a class of the program."""
        self.given = False
        """Whether the test has made the object with arguments, so that it should hold something."""
        self.informed = False
        """Whether the object comes from arithmetic with a value of the test."""


def link_of(value: Any) -> Link | None:
    """Return the link of a stand-in. Return None for the test's own value."""
    if isinstance(type(value), RemoteType):
        return object.__getattribute__(value, "_Remote__link")
    if type(value) is RemoteType:
        return type.__getattribute__(value, "_link")
    return None


def ask(value: Any, operation: str, *arguments: Any, **keywords: Any) -> Any:
    """Ask the program on behalf of a stand-in. Raises as `Asks.ask`."""
    link = link_of(value)
    assert link is not None
    return link.peer.ask(operation, value, *arguments, **keywords)


def _for_arrays(value: Any, name: str) -> Any:
    """Return the attribute that numpy reads instead of an object's items. numpy's own classes are
    left to numpy. Raises AttributeError."""
    if name in _MEMORY:
        raise AttributeError(name)
    answer = ask(value, "getattr", name)
    if type(answer).__name__ in ("method_descriptor", "builtin_function_or_method"):
        raise AttributeError(name)
    link = link_of(value)
    if link and answer is not None:
        link.peer.doubt = link.peer.doubt or name
    return answer


class RemoteType(type):
    _link: Link | None = None

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        result = ask(cls, "call", *arguments, **keywords)
        link = link_of(result)
        if link and cls._link and cls._link.made and type(result) is cls:
            link.made = True
            link.given = bool(arguments or keywords)
        return result

    def __getattr__(cls, name: str) -> Any:
        if name == "__abstractmethods__":
            raise AttributeError(name)
        if name in _ARRAYS or name in _MEMORY:
            return _for_arrays(cls, name)
        if name in _PREDICATES:
            cls._doubt(name)
        return ask(cls, "getattr", name)

    def _doubt(cls, name: str) -> None:
        link = cls._link
        if link and not link.made:
            link.peer.doubt = link.peer.doubt or f"{name} of a class"

    def __setattr__(cls, name: str, value: Any) -> None:
        ask(cls, "setattr", name, value)

    def __bool__(cls) -> bool:
        return True

    def __iter__(cls) -> Any:
        return ask(cls, "special", "__iter__")

    def __len__(cls) -> Any:
        cls._doubt("__len__")
        return ask(cls, "special", "__len__")

    def __getitem__(cls, key: Any) -> Any:
        return ask(cls, "special", "__getitem__", key)

    def __contains__(cls, value: Any) -> Any:
        if link_of(value) is None and (link := cls._link):
            link.peer.doubt = link.peer.doubt or "__contains__ of a class"
        return ask(cls, "special", "__contains__", value)


def attribute(name: str) -> property:
    """Return the attribute of that name of the program's object."""
    return property(lambda self: ask(self, "getattr", name))


class Remote(metaclass=RemoteType):
    __dict__ = attribute("__dict__")

    def __init_subclass__(cls) -> None:
        if "_link" not in vars(cls):
            raise UnsendableError("a test cannot extend a class of the program")

    def __getattr__(self, name: str) -> Any:
        if name in _ARRAYS or name in _MEMORY:
            return _for_arrays(self, name)
        link = link_of(self)
        if link and name in _PREDICATES and not link.made:
            if hasattr(link.base, name):
                return getattr(plain_value(self, link), name)
            link.peer.doubt = link.peer.doubt or name
        return ask(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        ask(self, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        ask(self, "delattr", name)

    def __copy__(self) -> Any:
        return ask(self, "copy", "copy")

    def __deepcopy__(self, memo: Any) -> Any:
        return ask(self, "copy", "deepcopy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsendableError("a test cannot pickle an object of the program")


def plain_value(value: Any, link: Link) -> Any:
    """Return the plain value of a subclass of a plain type."""
    return value if link.base in IMMUTABLE else link.peer.ask("plain", value)
