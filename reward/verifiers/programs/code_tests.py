"""Reads the tests of `code` from dataset rows in all usual forms. Runs nothing."""

import ast
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reward.verifiers.base import BadReferenceError, shown
from reward.verifiers.programs.function_tests import as_text, calls, collected

FORMS = (
    "give {test, entry_point} (HumanEval), {test_list} (MBPP) or a list of asserts, or "
    "{inputs, outputs} or a list of {input, output} for programs that read and print"
)
_CHECK = "def check("
# Columns that hold tests, and columns that complete them (HumanEval, MBPP).
_TESTS = ("test", "test_list")
_NAMES = ("fn_name", "func_name", "entry_point")
"""Keys for the name of the function under test: APPS, LiveCodeBench's metadata, HumanEval."""
_CONTEXT = (*_NAMES, "metadata", "prompt", "test_setup_code", "test_imports")
_CALLED = ("functional", "function_call")
"""Kinds of tests that call a function: LiveCodeBench, verifiable-coding-problems."""
_METHOD = re.compile(r"Solution(?:\(\))?\.(\w+)")


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
        if _CHECK in answer:
            answer = form | {"test": answer}
        elif _asserts(answer):
            answer = _context(form, {}) | {"test_list": [answer]}
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
        answer = (_context(form, answer) if known else form) | answer
    elif isinstance(answer, list):
        are_code = all(isinstance(test, str) for test in answer)
        answer = _context(form, {}) | {"test_list" if are_code else "test_cases": answer}
    tests = _read(answer)
    if not tests.cases:
        raise BadReferenceError(f"reference {shown(answer)} holds no tests; {FORMS}")
    return tests


def _context(form: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that complete the tests of `answer`."""
    # The entry point of a row with a column of tests belongs to these tests.
    left_out = "entry_point" if "test" in form and "test" not in answer else ""
    return {key: form[key] for key in _CONTEXT if key in form and key != left_out}


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
    return "assert" in code or "raise" in code


def _read(answer: Any) -> Suite:
    if not isinstance(answer, dict):
        raise BadReferenceError(f"reference {shown(answer)} holds no tests; {FORMS}")
    if "test" in answer:
        return _function(answer)
    if "test_list" in answer:
        setup = [answer.get("test_setup_code") or "", *(answer.get("test_imports") or [])]
        setup_code = as_text(setup)
        return Suite(_coded(_list(answer, "test_list"), setup_code), setup=setup_code)
    if "test_cases" in answer:
        return _listed(_list(answer, "test_cases"), _name(answer))
    for inputs, outputs in (("inputs", "outputs"), ("input", "output")):
        if inputs in answer and outputs in answer:
            pairs = _pairs(_list(answer, inputs), _list(answer, outputs))
            return _of_pairs(pairs, _name(answer))
    raise BadReferenceError(f"reference with {shown(sorted(answer))} holds no tests; {FORMS}")


def _name(row: dict[str, Any]) -> str:
    """Return the name of the function under test. LiveCodeBench has it in `metadata`, maybe as JSON
    text. Return an empty string if the row names none."""
    metadata = row.get("metadata")
    if isinstance(metadata, str):
        metadata = _parsed(metadata)
    named = [row.get(key) for key in _NAMES]
    named += [metadata.get(key) for key in _NAMES] if isinstance(metadata, dict) else []
    name = as_text(next(filter(None, named), ""))
    method = _METHOD.fullmatch(name)
    return method[1] if method else name


def _function(answer: dict[str, Any]) -> Suite:
    """Read HumanEval's form, where `test` defines check(candidate), or other code that asserts."""
    code = as_text(answer["test"])
    entry, prompt = _name(answer), as_text(answer.get("prompt") or "")
    prompt = prompt if _is_python(prompt) else ""
    if _CHECK not in code:
        return Suite(_coded([code], prompt), entry, prompt)
    if not entry:
        raise BadReferenceError(
            "the reference has a test with check(candidate), but no 'entry_point' that names "
            "the function"
        )
    _check_asserts(prompt + code)
    return Suite([Case(code=f"{code}\n\ncheck(candidate)\n")], entry, prompt)


def _is_python(prompt: str) -> bool:
    """Tell whether a prompt is Python that imports or defines something."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    try:
        return any(isinstance(node, kinds) for node in ast.parse(with_body(prompt)).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _listed(tests: list[Any], name: str) -> Suite:
    """Read a list of tests. `name`: the function under test, if the row names it."""
    if all(isinstance(test, str) for test in tests):
        return Suite(_coded(tests))
    if not all(isinstance(test, dict) and {"input", "output"} <= test.keys() for test in tests):
        raise BadReferenceError(f"{shown(tests)} is no list of tests; {FORMS}")
    kinds = {str(test.get("testtype") or test.get("type") or "") for test in tests}
    names = {_name(test) or name for test in tests}
    are_called = bool(kinds & {"", *_CALLED})
    if len(names) > 1 or (names == {""} and kinds & {*_CALLED}):
        raise BadReferenceError(
            f"tests of a function need its name, the same in all, not {shown(sorted(names))}; give "
            "{fn_name, inputs, outputs}"
        )
    pairs = [(test["input"], test["output"]) for test in tests]
    return _of_pairs(pairs, min(names, default="") if are_called else "")


def _of_pairs(pairs: Sequence[tuple[Any, Any]], name: str) -> Suite:
    """Read input and output: of the function `name`, or of a program if it is empty."""
    if not name:
        return Suite([Case(as_text(given), as_text(wanted)) for given, wanted in pairs])
    return Suite([Case(code=test) for test in calls(name, pairs)], name, provided=True)


def _coded(tests: Sequence[Any], setup: str = "") -> list[Case]:
    """Read tests that are code. `setup`: code before each of them, whose functions may assert."""
    if not all(isinstance(test, str) for test in tests):
        raise BadReferenceError(f"{shown(tests)} is no list of asserts; {FORMS}")
    for test in tests:
        _check_asserts(setup + test)
    return [Case(code=code) for test in tests for code in collected(test)]


def _check_asserts(test: str) -> None:
    if not _asserts(test):
        raise BadReferenceError(
            f"test {shown(test)} asserts nothing, so every program would pass; {FORMS}"
        )


def _pairs(inputs: list[Any], outputs: list[Any]) -> list[tuple[Any, Any]]:
    if len(inputs) != len(outputs):
        raise BadReferenceError(
            f"the reference has {len(inputs)} inputs and {len(outputs)} outputs"
        )
    return list(zip(inputs, outputs, strict=True))


def _list(answer: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(answer[key], list):
        raise BadReferenceError(f"'{key}' of the reference is {shown(answer[key])}, no list")
    return answer[key]
