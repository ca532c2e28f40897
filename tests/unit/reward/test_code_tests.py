"""The forms in which tests of code come, and where the program stands in a completion."""

import json
from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError, Item
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
def test_forms(answer: Any, cases: list[Case]) -> None:
    assert read_tests(answer) == Suite(cases)


def test_humaneval() -> None:
    tests = read_tests(
        {"task_id": "0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c): c(1)"}
    )

    code = "def check(c): c(1)\n\ncheck(candidate)\n"
    assert tests == Suite([Case(code=code)], entry_point="f", prompt="def f(x):\n")


def test_mbpp_with_imports() -> None:
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
def test_what_holds_no_tests_is_named(answer: Any) -> None:
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
        ("<think>```python\nx = 1\n```</think>```python\nx = 2\n```", "x = 2\n"),
        ("<think>```python\nx = 1\n```</think>", ""),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
    ],
)
def test_the_program_in_a_completion(completion: str, program: str) -> None:
    assert find_program(Item("code", "", completion, None, {}), ASSERTS) == program


def test_a_completion_that_continues_the_prompt() -> None:
    found = find_program(Item("code", "", "    return 2 * x\n", None, {}), FUNCTION)

    assert found == PROMPT + "    return 2 * x\n"


def test_a_completion_that_writes_the_function_out_keeps_the_prompts_imports() -> None:
    found = find_program(Item("code", "", "def f(x): return 2 * x\n", None, {}), FUNCTION)

    assert found == f"{PROMPT}\ndef f(x): return 2 * x\n"


def test_a_prompt_in_words_is_no_part_of_the_program() -> None:
    item = Item("code", "Write a function f.", "def f(x): return 2 * x\n", None, {})

    assert find_program(item, FUNCTION._replace(prompt="")) == "def f(x): return 2 * x\n"
