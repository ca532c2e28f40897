"""Makes the code of tests: from calls of one function, as APPS, TACO and LiveCodeBench have them,
and from functions and classes that pytest or unittest would run. Pure; runs nothing.
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from reward.verifiers.base import BadReferenceError, shown

# The comparison makes results plain first: tuples become lists, and floats of the program's own
# class become numbers. Keys of JSON objects are text, and stand for whole numbers too. Floats are
# equal within 1e-6, as printed floats are (`program_output`).
_JUDGE = """
inf = float("inf")


def plain(value):
    if isinstance(value, (list, tuple)):
        return [*map(plain, value)]
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return float.__add__(value, 0) if isinstance(value, float) else value


def same(given, wanted):
    if isinstance(wanted, list):
        same_length = isinstance(given, list) and len(given) == len(wanted)
        return same_length and all(map(same, given, wanted))
    if isinstance(wanted, dict):
        if not isinstance(given, dict):
            return False
        if given.keys() != wanted.keys():
            wanted = whole_keys(wanted)
        if given.keys() != wanted.keys():
            return False
        return all(same(given[key], wanted[key]) for key in wanted)
    if isinstance(wanted, float) and type(given) in (int, float):
        return given == wanted or abs(given - wanted) <= 1e-6 * max(1, abs(wanted))
    return given == wanted


def whole_keys(table):
    try:
        return {int(key): value for key, value in table.items()}
    except ValueError:
        return table


def difference(call, given, *wanted):
    if not any(same(given, each) for each in wanted):
        return f"{call} returned {repr(given)[:80]}, not {repr(wanted[-1])[:80]}"
"""


def calls(name: str, pairs: Sequence[tuple[Any, Any]]) -> list[str]:
    """Return a test for each call of the function `name`. `pairs`: arguments and results."""
    tests = []
    for given, wanted in pairs:
        # LiveCodeBench has both sides as JSON text, APPS has values.
        as_text = isinstance(given, str)
        arguments = _values(given) if as_text else given
        if not isinstance(arguments, list):
            raise BadReferenceError(f"input {shown(given)} is no list of arguments")
        arguments = [_whole_keys(argument) for argument in arguments]
        results = [_values(wanted)[0] if as_text else wanted]
        if not as_text and isinstance(wanted, list) and len(wanted) == 1:
            # Most rows of APPS have the result in a list; the others have the bare result.
            results += wanted
        call = f"{name}({', '.join(map(repr, arguments))[:80]})"
        wants = ", ".join(map(repr, results))
        made = f"wrong = difference({call!r}, plain(candidate(*{arguments!r})), {wants})"
        tests.append(f"{_JUDGE}\n{made}\nassert not wrong, wrong\n")
    return tests


def _whole_keys(argument: Any) -> Any:
    """Return an argument with whole numbers as the keys of a dictionary, which JSON has as text."""
    keys = argument.keys() if isinstance(argument, dict) else ()
    if not keys or not all(re.fullmatch(r"-?\d{1,4000}", key) for key in keys):
        return argument
    return {int(key): value for key, value in argument.items()}


def _values(text: Any) -> list[Any]:
    """Read JSON values, one a line."""
    try:
        return [json.loads(line) for line in as_text(text).splitlines()] or [None]
    except (ValueError, RecursionError) as error:
        raise BadReferenceError(f"{shown(text)} is no JSON, line by line: {error}") from None


def as_text(value: Any) -> str:
    """Return text, a number as text, or a list of lines as text."""
    if isinstance(value, list):
        return "\n".join(map(as_text, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadReferenceError(f"{shown(value)} in the tests is {type(value).__name__}, no text")
    return str(value)


def collected(code: str) -> list[str]:
    """Return the tests in `code`, each with all of its definitions. Code that only defines
    functions and classes has the tests that pytest would run: `test…` functions, `Test…` classes
    and classes of `unittest`. Other code is one test. Names that it imports from `solution` are the
    program's."""
    if code.startswith("assert "):
        return [code]
    try:
        given = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [code]
    body = [*_without_solution(given)]
    if any(map(_acts, body)):
        return [code if body == given else _source(body)]
    definitions = _source([node for node in body if not _runs_all(node)])
    tests = [f"{definitions}\n\n{call}\n" for node in body for call in _calls_of(node)]
    if not tests and not any(isinstance(node, ast.Call) for node in _assigned(body)):
        raise BadReferenceError(
            f"test {shown(code)} asserts nothing when it runs, so every program would pass: call "
            "its functions, or name them test_…"
        )
    return tests or [code]


def _source(body: list[ast.stmt]) -> str:
    return ast.unparse(ast.Module(body, type_ignores=[]))


def _without_solution(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Return statements without imports from the program, which KodCode calls `solution`. The names
    that they import come from the program in any case."""
    for node in body:
        if not isinstance(node, ast.ImportFrom) or node.module != "solution":
            yield node
        else:
            renamed = [f"{name.asname} = {name.name}" for name in node.names if name.asname]
            yield from ast.parse("\n".join(renamed)).body


def _assigned(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            yield from ast.walk(node.value)


def _acts(node: ast.stmt) -> bool:
    """Tell whether a statement may run an assertion."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant) and not _runs_all(node)
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return not isinstance(node, (*kinds, ast.Assign, ast.AnnAssign)) and not _runs_all(node)


def _runs_all(node: ast.stmt) -> bool:
    """Tell whether a statement runs all tests of its file: `unittest.main()`, or what a script does
    if it is `__main__`."""
    if isinstance(node, ast.If):
        return "__name__" in ast.unparse(node.test)
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in ("unittest.main", "pytest.main")


def _calls_of(node: ast.stmt) -> Iterator[str]:
    """Return the calls that run the tests which `node` defines."""
    if isinstance(node, ast.ClassDef) and any("TestCase" in ast.unparse(b) for b in node.bases):
        load = "unittest.defaultTestLoader.loadTestsFromTestCase"
        yield f"import unittest\n{load}({node.name}).debug()"
    elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        if any(re.match("setup|teardown|__init__", each.name) for each in methods):
            raise _needs_pytest(node.name)
        yield from (f"{node.name}().{call}" for each in methods for call in _call_of(each, 1))
    elif isinstance(node, ast.FunctionDef):
        yield from _call_of(node, 0)


def _call_of(function: ast.FunctionDef, arguments: int) -> Iterator[str]:
    if function.name.startswith("test"):
        taken = function.args
        needed = len(taken.posonlyargs + taken.args) - len(taken.defaults)
        if needed > arguments or function.decorator_list:
            raise _needs_pytest(function.name)
        yield f"{function.name}()"


def _needs_pytest(name: str) -> BadReferenceError:
    return BadReferenceError(
        f"test {name!r} has fixtures, parameters, decorators or a set-up, which need pytest; give "
        "functions or unittest classes without them"
    )
