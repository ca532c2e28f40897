"""Reads the tests of `code` from dataset rows in all usual forms. Runs nothing."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reward.verifiers.base import BadReferenceError, shown

FORMS = (
    "give {test, entry_point} (HumanEval), {test_list} (MBPP) or a list of asserts, or "
    "{inputs, outputs} or a list of {input, output} for programs that read and print"
)
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


_CHECK = "def check("
# Columns that hold tests, and columns that complete them (HumanEval, MBPP).
_TESTS = ("test", "test_list")
_CONTEXT = ("entry_point", "prompt", "test_setup_code", "test_imports")


class Case(NamedTuple):
    """One test: input for a program that prints, or code that calls its functions."""

    stdin: str = ""
    stdout: str = ""
    code: str = ""


class Suite(NamedTuple):
    """The tests of one dataset row."""

    cases: list[Case]
    entry_point: str = ""
    """The function under test, `candidate` in the tests' code. Empty: tests call it by its own
    name."""
    prompt: str = ""
    """Python that the completion continues, or builds on."""
    setup: str = ""
    """Python that runs before each test's code."""
    provided: bool = False
    """Whether the program may use names of the standard library without importing them."""


def read_tests(answer: Any, columns: Mapping[str, Any] | None = None) -> Suite:
    """Return the tests of a reference. The row's other `columns` provide missing parts, under the
    names of HumanEval and MBPP. Raises BadReferenceError."""
    limit = sys.get_int_max_str_digits()
    # Tests have integers of any length, as text.
    sys.set_int_max_str_digits(0)
    try:
        return _suite(answer, columns)
    finally:
        sys.set_int_max_str_digits(limit)


def _suite(answer: Any, columns: Mapping[str, Any] | None) -> Suite:
    there = {key: value for key, value in (columns or {}).items() if value is not None}
    form = {key: there[key] for key in (*_TESTS, *_CONTEXT) if key in there}
    if isinstance(answer, str):
        answer = _parsed(answer)
    if isinstance(answer, str):
        if _asserts(answer):
            answer = {**form, "test": answer} if _CHECK in answer else [answer]
        elif not any(key in form for key in _TESTS):
            raise BadReferenceError(
                f"reference {shown(answer)} asserts nothing, so every program would pass; {FORMS}"
            )
        else:
            answer = form
    elif answer is None:
        answer = form
    elif isinstance(answer, dict):
        known = any(key in answer for key in (*_TESTS, "test_cases", "inputs", "input"))
        answer = {key: form[key] for key in (_CONTEXT if known else form) if key in form} | answer
    tests = _read(answer)
    if not tests.cases:
        raise BadReferenceError(f"reference {shown(answer)} holds no tests; {FORMS}")
    return tests


def with_body(prompt: str) -> str:
    """Return `prompt` as Python that runs by itself: a function's head at its end gets an empty
    body."""
    lines = [line for line in prompt.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    last = lines[-1] if lines else ""
    if not any(head.rstrip().endswith(":") for head in (last, last.partition("#")[0])):
        return prompt
    indent = last[: len(last) - len(last.lstrip())]
    return f"{prompt.rstrip()}\n{indent}    pass\n"


def _parsed(text: str) -> Any:
    """Parse JSON within JSON, as some datasets have it. Return other text, a test's code,
    unchanged."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadReferenceError(f"reference {shown(text)} is no JSON: {error}") from None
    return text if text.strip() else []


def _asserts(code: str) -> bool:
    """Tell whether a test's code can fail at all."""
    return any(word in code for word in ("assert", "raise", _CHECK))


def _read(answer: Any) -> Suite:
    if isinstance(answer, list):
        return Suite(_listed(answer))
    if not isinstance(answer, dict):
        raise BadReferenceError(f"reference {shown(answer)} holds no tests; {FORMS}")
    if "test" in answer:
        return _function(answer)
    if "test_list" in answer:
        setup = [answer.get("test_setup_code") or "", *(answer.get("test_imports") or [])]
        return Suite(_listed(_list(answer, "test_list")), setup=_text(setup))
    if "test_cases" in answer:
        return _read(answer["test_cases"])
    for inputs, outputs in (("inputs", "outputs"), ("input", "output")):
        if inputs in answer and outputs in answer:
            pairs = _pairs(_list(answer, inputs), _list(answer, outputs))
            name = answer.get("fn_name") or ""
            if not name:
                return Suite(_printed(pairs))
            name = _text(name)
            return Suite(_calls(name, pairs), name, provided=True)
    raise BadReferenceError(f"reference with {shown(sorted(answer))} holds no tests; {FORMS}")


def _function(answer: dict[str, Any]) -> Suite:
    """Read HumanEval's form: `test` defines check(candidate)."""
    code = _text(answer["test"])
    entry = _text(answer.get("entry_point") or "")
    if _CHECK in code:
        if not entry:
            raise BadReferenceError(
                "the reference has a test with check(candidate), but no 'entry_point' that names "
                "the function"
            )
        code += "\n\ncheck(candidate)\n"
    return Suite([Case(code=code)], entry, _text(answer.get("prompt") or ""))


def _listed(tests: list[Any]) -> list[Case]:
    if all(isinstance(test, str) for test in tests):
        return [Case(code=test) for test in tests]
    if not all(isinstance(test, dict) and {"input", "output"} <= test.keys() for test in tests):
        raise BadReferenceError(f"{shown(tests)} is no list of tests; {FORMS}")
    named = [test.get("fn_name") for test in tests]
    if any(named):
        raise BadReferenceError("tests that name a function each: give {fn_name, inputs, outputs}")
    return _printed([(test["input"], test["output"]) for test in tests])


def _pairs(inputs: list[Any], outputs: list[Any]) -> list[tuple[Any, Any]]:
    if len(inputs) != len(outputs):
        raise BadReferenceError(
            f"the reference has {len(inputs)} inputs and {len(outputs)} outputs"
        )
    return list(zip(inputs, outputs, strict=True))


def _printed(pairs: Sequence[tuple[Any, Any]]) -> list[Case]:
    return [Case(stdin=_text(given), stdout=_text(wanted)) for given, wanted in pairs]


def _calls(name: str, pairs: Sequence[tuple[Any, Any]]) -> list[Case]:
    """Read calls of one function: arguments and results."""
    cases = []
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
        cases.append(Case(code=f"{_JUDGE}\n{made}\nassert not wrong, wrong\n"))
    return cases


def _whole_keys(argument: Any) -> Any:
    """Return an argument with whole numbers as the keys of a dictionary, which JSON has as text."""
    keys = argument.keys() if isinstance(argument, dict) else ()
    if not keys or not all(re.fullmatch(r"-?\d{1,4000}", key) for key in keys):
        return argument
    return {int(key): value for key, value in argument.items()}


def _values(text: Any) -> list[Any]:
    """Read JSON values, one a line."""
    try:
        return [json.loads(line) for line in _text(text).splitlines()] or [None]
    except (ValueError, RecursionError) as error:
        raise BadReferenceError(f"{shown(text)} is no JSON, line by line: {error}") from None


def _list(answer: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(answer[key], list):
        raise BadReferenceError(f"'{key}' of the reference is {shown(answer[key])}, no list")
    return answer[key]


def _text(value: Any) -> str:
    """Return text, a number as text, or a list of lines as text."""
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadReferenceError(f"{shown(value)} in the tests is {type(value).__name__}, no text")
    return str(value)
