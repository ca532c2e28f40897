"""Static analysis of a test's source: the names that it needs, the exceptions that it catches, and
its effects that only its own process can see.
"""

import ast
import builtins
import importlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

_LIBRARIES = (
    "math", "cmath", "collections", "itertools", "functools", "statistics", "fractions",
    "decimal", "heapq", "bisect",
)  # fmt: skip
"""Modules whose functions a test may use and forget to import."""
ALIASES = {"np": "numpy", "pd": "pandas"}
"""Names under which tests use modules that they have not imported."""
_EFFECTS = {
    "addHandler", "assertLogs", "assertWarns", "assertWarnsRegex", "catch_warnings", "chdir",
    "getcontext", "localcontext", "makedirs", "mkdir", "mkdtemp", "mkstemp", "NamedTemporaryFile",
    "putenv", "redirect_stderr", "redirect_stdout", "setcontext", "TemporaryDirectory",
    "warns", "write_bytes", "write_text",
}  # fmt: skip
"""Functions whose effect the program would see in the test's process."""


class Used(NamedTuple):
    """Names that a test uses and does not define at its top level."""

    names: set[str]
    modules: set[str]
    """Names whose attributes the test reads. A function, too, may be called `copy` or `select`."""
    local: set[str]
    """The names that the test also assigns or has as arguments."""


class Catch(NamedTuple):
    """Lines of a test in which it expects an exception of that name."""

    name: str
    first: int
    last: float


def used_names(tree: ast.Module) -> Used:
    """Collect the names of `Used`. A name that the test defines only if it is missing, after
    `except NameError`, belongs to the test."""
    nodes = list(ast.walk(tree))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    owners = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Try) and _catches(node, "NameError"):
            defined.update(_stored(node))
    modules = {node.id for node in owners if isinstance(node, ast.Name)}
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)} - defined
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return Used(used, modules & used, used & (_stored(tree) | arguments))


def _stored(tree: ast.AST) -> set[str]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def _catches(node: ast.Try, name: str) -> bool:
    return any(name in _names(handler.type) for handler in node.handlers if handler.type)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def judges(tree: ast.Module, tested: set[str]) -> set[str]:
    """Return the functions that a test calls with results of `tested`, directly or through a
    variable: `isclose(f(3), 9)`."""
    nodes = list(ast.walk(tree))
    tested = set(tested)
    for node in nodes:
        given = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.For) and given and _names(given) & tested:
            tested |= _stored(node) if isinstance(node, ast.Assign) else _stored(node.target)
    return {
        node.func.id
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if any(_names(value) & tested for value in node.args)
    } - tested


def of_a_library(name: str) -> Any:
    """Return the object of that name in a module of the standard library, or None."""
    modules = map(importlib.import_module, _LIBRARIES)
    return next((getattr(module, name) for module in modules if name in dir(module)), None)


def caught(tree: ast.Module) -> list[Catch]:
    """Return the lines in which a test catches exceptions, or passes their names to a function that
    catches them."""
    return [
        Catch(name, first, last)
        for node in ast.walk(tree)
        for names, first, last in _caught(node)
        for name in names
    ]


def _caught(node: ast.AST) -> Iterator[tuple[set[str], int, float]]:
    match node:
        case ast.Try(body=body, handlers=handlers):
            for handler in handlers:
                if handler.type:
                    yield _names(handler.type), body[0].lineno, body[-1].end_lineno or math.inf
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                yield _passed(item.context_expr), node.lineno, node.end_lineno or math.inf
        case ast.Assign(value=ast.Call() as value):
            # Such as `expects = pytest.raises(StopIteration)`, for a later line.
            yield _passed(value), node.lineno, math.inf
        case ast.Call():
            yield _passed(node), node.lineno, node.end_lineno or math.inf


def _passed(node: ast.AST) -> set[str]:
    calls = [child for child in ast.walk(node) if isinstance(child, ast.Call)]
    return {name for call in calls for value in call.args for name in _names(value)}


def effect(tree: ast.Module) -> str:
    """Describe an effect of the test that the program should see, and cannot see from its own
    process. Return an empty string for most tests."""
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {
        alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names
    }
    stored: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if isinstance(node.value, ast.Name) and node.value.id in modules:
                return f"sets {node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call) and (name := _effect_of(node, modules)):
            return f"uses {name}"
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            stored.add(_last(node.value))
    return "sets os.environ" if "environ" in stored else ""


def _effect_of(node: ast.Call, modules: set[str]) -> str:
    name, owner = _last(node.func), getattr(node.func, "value", None)
    first = node.args[0] if node.args else None
    if name in _EFFECTS:
        return name
    if name == "patch" or (name == "dict" and _last(owner) == "patch"):
        return "patch"
    if name == "object" and _last(owner) == "patch" and _last(first) in modules:
        return "patch.object of a module"
    if owner is not None and _last(owner) == "environ" and name != "get":
        return f"environ.{name}"
    if name == "open":
        modes = [
            *node.args[1:2],
            *(keyword.value for keyword in node.keywords if keyword.arg == "mode"),
        ]
        written = [keyword.value for keyword in modes if isinstance(keyword, ast.Constant)]
        return "open to write" if any(set(str(mode)) & set("wax+") for mode in written) else ""
    return ""


def _last(node: ast.AST | None) -> str:
    """Return `c` of `a.b.c`."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def compares_identity(tree: ast.Module, line: int) -> bool:
    """Tell whether the statement in that line compares identity, apart from comparisons with None,
    True, and types."""
    for node in ast.walk(tree):
        here = isinstance(node, ast.Compare) and node.lineno <= line <= (node.end_lineno or line)
        if here and isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            plain = any(isinstance(side, ast.Constant) or _is_type(side) for side in sides)
            if not plain and any(isinstance(side, ast.Is) for side in node.ops):
                return True
    return False


def _is_type(node: ast.AST) -> bool:
    of = isinstance(node, ast.Call) and _last(node.func) == "type"
    return of or isinstance(getattr(builtins, _last(node), None), type)


def uses_nan(tree: ast.Module) -> bool:
    """Tell whether a test makes a nan. A container with a nan equals itself, and differs from its
    copy."""
    return any(
        _last(node) == "nan"
        or (isinstance(node, ast.Constant) and str(node.value).strip("+-").lower() == "nan")
        for node in ast.walk(tree)
    )


def copied_classes(prompt: str, names: dict[str, Any], used: set[str]) -> set[str]:
    """Return the names by which a test uses classes of the prompt that the program defines too.
    Named tuples are plain values."""
    try:
        tree = ast.parse(prompt)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    defined = {
        name
        for node in tree.body
        for name in (_stored(node) | {str(getattr(node, "name", ""))})
        if not isinstance(node, ast.Import | ast.ImportFrom)
    }
    copies = {name for name in defined if getattr(names.get(name), "__module__", "") == "tests"}
    classes = {name for name in copies if isinstance(names[name], type)}
    classes = {name for name in classes if not issubclass(names[name], tuple)}
    return used & copies if classes else set()
