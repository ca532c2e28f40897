"""Linked lists and binary trees as LeetCode's judge passes them: the test has lists, and a program
whose annotations name `ListNode` or `TreeNode` gets nodes and may return nodes.
"""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

MOST_NODES = 1_000_000
"""A longer result is taken for a cycle."""


class ListNode:
    """LeetCode's class."""

    def __init__(self, val: Any = 0, next: Any = None) -> None:
        self.val, self.next = val, next


class TreeNode:
    """LeetCode's class."""

    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right


NODES = {"ListNode": ListNode, "TreeNode": TreeNode}


def pass_nodes(names: dict[str, Any], entry: str) -> None:
    """Replace the function or method `entry` of a program by one that takes and returns lists, if
    its annotations name nodes. `names`: the program's definitions, which may have own classes."""
    holder = names.get("Solution") if entry not in names else None
    function = vars(holder).get(entry) if isinstance(holder, type) else names.get(entry)
    if not isinstance(function, FunctionType):
        return
    if not any(_kind(hint) for hint in function.__annotations__.values()):
        return
    wrapped = _wrapped(function, {name: names.get(name, kind) for name, kind in NODES.items()})
    if isinstance(holder, type):
        setattr(holder, entry, wrapped)
    else:
        names[entry] = wrapped


def _wrapped(function: FunctionType, classes: dict[str, Any]) -> Callable[..., Any]:
    hints = function.__annotations__
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]

    def node(name: str, value: Any) -> Any:
        kind = _kind(hints.get(name))
        return _nodes(value, classes[kind], _holds_many(hints[name])) if kind else value

    is_inside = False

    @functools.wraps(function)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        nonlocal is_inside
        if is_inside:
            # A recursive call has nodes.
            return function(*arguments, **keywords)
        given = [node(*pair) for pair in zip(parameters, arguments, strict=False)]
        given += arguments[len(given) :]
        named = {name: node(name, value) for name, value in keywords.items()}
        is_inside = True
        try:
            result = function(*given, **named)
        finally:
            is_inside = False
        hint = hints.get("return")
        if result is None and _kind(hint) and not _holds_many(hint):
            return []
        return _lists(result, classes)

    return wrapped


def _kind(hint: Any) -> str:
    """Return the class of nodes in an annotation. Return an empty string for other annotations."""
    return next((name for name in NODES if name in str(hint)), "")


def _holds_many(hint: Any) -> bool:
    return "list[" in str(hint).lower()


def _nodes(value: Any, kind: Any, many: bool) -> Any:
    if not isinstance(value, list):
        return value
    if many:
        return [_nodes(inner, kind, many=False) for inner in value]
    return _chain(value, kind) if kind.__name__ == "ListNode" else _tree(value, kind)


def _chain(values: list[Any], kind: Any) -> Any:
    node = None
    for value in reversed(values):
        node = kind(value, node)
    return node


def _tree(values: list[Any], kind: Any) -> Any:
    """Build a tree from its levels, in which None stands for a missing child."""
    if not values:
        return None
    root = kind(values[0])
    parents, rest = [root], iter(values[1:])
    for parent in parents:
        for side in ("left", "right"):
            value = next(rest, None)
            if value is not None:
                setattr(parent, side, kind(value))
                parents.append(getattr(parent, side))
    return root


def _lists(value: Any, classes: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_lists(inner, classes) for inner in value]
    values: list[Any] = []
    if isinstance(value, classes["ListNode"]):
        while value is not None:
            values.append(value.val)
            value = value.next
            _check(values)
        return values
    if not isinstance(value, classes["TreeNode"]):
        return value
    nodes = [value]
    for node in nodes:
        values.append(None if node is None else node.val)
        nodes += [] if node is None else [node.left, node.right]
        _check(values)
    while values[-1] is None:
        values.pop()
    return values


def _check(values: list[Any]) -> None:
    if len(values) > MOST_NODES:
        raise ValueError(f"a result with more than {MOST_NODES} nodes, or with a cycle")
