"""The forms in which tests of code come, and where the program stands in a completion."""

import json
from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError
from reward.verifiers.code import find_program
from reward.verifiers.code_tests import Case, Suite, read_tests


@pytest.mark.parametrize(
    ("answer", "cases"),
    [
        (["assert f(1)", "assert f(2)"], [Case(code="assert f(1)"), Case(code="assert f(2)")]),
        ("assert f(1)\nassert f(2)", [Case(code="assert f(1)\nassert f(2)")]),
        ({"test_list": ["assert f(1)"]}, [Case(code="assert f(1)")]),
        ([{"input": "1", "output": "2"}], [Case("1", "2")]),
        ([{"input": 1, "output": ["2", "3"], "testtype": "stdin"}], [Case("1", "2\n3")]),
        ({"inputs": ["1", "2"], "outputs": ["3", "4"]}, [Case("1", "3"), Case("2", "4")]),
        ({"input": ["1"], "output": ["3"]}, [Case("1", "3")]),
        (json.dumps({"inputs": ["1"], "outputs": ["3"]}), [Case("1", "3")]),
        ({"language": "python", "test_cases": [{"input": "1", "output": "2"}]}, [Case("1", "2")]),
    ],
)
def test_every_form_of_tests_is_read(answer: Any, cases: list[Case]) -> None:
    assert read_tests(answer) == Suite(cases)


def test_a_humaneval_row_is_read() -> None:
    tests = read_tests(
        {"task_id": "0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c): c(1)"}
    )

    code = "def check(c): c(1)\n\ncheck(candidate)\n"
    assert tests == Suite([Case(code=code)], entry_point="f", prompt="def f(x):\n")


def test_imports_of_an_mbpp_row_are_read() -> None:
    tests = read_tests({"test_imports": ["import math"], "test_list": ["assert f(1)"]})

    assert tests.setup.strip() == "import math"


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        ({"fn_name": "f", "inputs": [[1, [2]]], "outputs": [3]},
         "candidate(*[1, [2]])) == plain(3"),
        ({"fn_name": "f", "inputs": ["1\n[2]"], "outputs": ["3"]},
         "candidate(*[1, [2]])) == plain(3"),
    ],
)  # fmt: skip
def test_calls_of_a_named_function(answer: Any, call: str) -> None:
    tests = read_tests(answer)

    assert tests.entry_point == "f"
    assert call in tests.cases[0].code


@pytest.mark.parametrize(
    "answer",
    [None, 5, [], "", "  ", {}, {"inputs": ["1"], "outputs": []}, [1], ["assert f()", {}],
     {"test": "def check(candidate): pass"}, {"test_list": "assert f()"}, "[1", {"test": None},
     {"inputs": [None], "outputs": ["1"]}, {"fn_name": "f", "inputs": [1], "outputs": [1]},
     {"fn_name": "f", "inputs": ["{"], "outputs": ["1"]}],
)  # fmt: skip
def test_a_reference_without_tests_is_refused(answer: Any) -> None:
    with pytest.raises(BadReferenceError):
        read_tests(answer)


PROMPT = 'from math import *\n\n\ndef f(x):\n    """Twice x."""\n'
ASSERTS = Suite([Case(code="assert f(1)")])
FUNCTION = Suite([Case(code="check(candidate)")], "f", PROMPT)


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1\n", "x = 1\n"),
        ("Text\n```python\nx = 1\n```\nmore", "x = 1\n"),
        ("```\nx = 1\n```\n", "x = 1\n"),
        ("~~~py\nx = 1\n~~~", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nRun it:\n```bash\npython x.py\n```", "x = 1\n"),
        ("```python\nx = 1\n", "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
    ],
)
def test_the_last_block_of_python_is_the_program(completion: str, program: str) -> None:
    assert find_program(completion, ASSERTS) == program


def test_a_completion_may_continue_the_prompt() -> None:
    found = find_program("    return 2 * x\n", FUNCTION)

    assert found == PROMPT + "    return 2 * x\n"


def test_a_completion_that_writes_the_function_out_keeps_the_prompts_imports() -> None:
    found = find_program("def f(x): return 2 * x\n", FUNCTION)

    assert found == f"{PROMPT}\ndef f(x): return 2 * x\n"


CHECK = "def check(candidate):\n    assert candidate(1) == 2\n"
HUMANEVAL = Suite([Case(code=f"{CHECK}\n\ncheck(candidate)\n")], "f", PROMPT)


@pytest.mark.parametrize(
    ("answer", "columns"),
    [
        (None, {"test": CHECK, "entry_point": "f", "prompt": PROMPT, "task_id": "1"}),
        (CHECK, {"entry_point": "f", "prompt": PROMPT}),
        ({"test": CHECK}, {"entry_point": "f", "prompt": PROMPT, "test_list": ["assert False"]}),
        ({"entry_point": "f"}, {"test": CHECK, "prompt": PROMPT}),
        ("    return 2 * x\n", {"test": CHECK, "entry_point": "f", "prompt": PROMPT}),
    ],
)
def test_columns_provide_the_tests_that_the_answer_lacks(
    answer: Any, columns: dict[str, Any]
) -> None:
    assert read_tests(answer, columns) == HUMANEVAL


def test_tests_in_the_answer_win_over_those_of_a_column() -> None:
    answer = {"inputs": ["1"], "outputs": ["3"]}

    assert read_tests(answer, {"test": CHECK, "entry_point": "f"}).cases == [Case("1", "3")]


@pytest.mark.parametrize("answer", ["    return 2 * x\n", "def f(x):\n    return x\n", CHECK])
def test_text_that_cannot_fail_a_program_is_no_reference(answer: str) -> None:
    with pytest.raises(BadReferenceError):
        read_tests(answer, {"task_id": "HumanEval/0"})
