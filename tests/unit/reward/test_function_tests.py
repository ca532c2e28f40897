"""Tests that call a function of the program, and tests that are functions themselves."""

import json
import math
from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError
from reward.verifiers.programs.code_tests import Case, read_tests


def passes(given: Any, wanted: Any, returned: Any) -> bool:
    """Tell whether a function test of this input and output passes if the function returns
    `returned`."""
    tests = read_tests({"fn_name": "f", "inputs": [given], "outputs": [wanted]})
    assert (tests.entry_point, tests.provided) == ("f", True)
    try:
        exec(tests.cases[0].code, {"candidate": lambda *arguments: returned})
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(
    ("given", "wanted", "returned"),
    [
        ([1, [2]], 3, 3),
        ("1\n[2]", "3", 3),
        ("[1]", "[3]", [3]),
        ([1], [3], 3),  # APPS has results in lists of one
        ([1], [3], [3]),
        ([1], [[1, 2]], [1, 2]),
        ([1], [[1, 2]], (1, 2)),
        ([1], [[]], []),
        ([1], [True], True),
        ([1], ["a"], "a"),
        ([1], {"1": [0.3]}, {1: (0.1 + 0.2,)}),
        ([1], [{"1": 2, "-3": 4}], {1: 2, -3: 4}),
        ([1], {"a": 2}, {"a": 2}),
        ([0.1, 0.2], [0.3], 0.1 + 0.2),
        ([1], [[0.3333333, [2.0]]], [1 / 3, [2]]),
        ([1], [1e30], 1e30 * (1 + 1e-9)),
        ("1", "Infinity", math.inf),
    ],
)
def test_results_are_compared_as_the_datasets_own_judges_do(
    given: Any, wanted: Any, returned: Any
) -> None:
    assert passes(given, wanted, returned)


@pytest.mark.parametrize(
    ("given", "wanted", "returned"),
    [
        ([1], 3, 4),
        ([1], [3], [[3]]),
        ([1], [3, 4], 3),
        ("[1]", "[3]", 3),  # JSON text says what it means
        ([1], [10**6], 10**6 + 0.5),
        ([1], [2], 2.0000001),
        ([1], [0.3], 0.30001),
        ([1], [0.3], "0.3"),
        ([1], [1.0], None),
        ([1], [[1, 2]], [1]),
        ([1], {"1": 2}, {1: 3}),
        ([1], {"1": 2, "a": 3}, {1: 2, "a": 3}),
        ([1], {"1": 2}, [1]),
        ([1], ["0.30"], "0.3"),
    ],
)
def test_other_results_are_wrong(given: Any, wanted: Any, returned: Any) -> None:
    assert not passes(given, wanted, returned)


def test_a_failed_function_test_says_what_was_returned() -> None:
    tests = read_tests({"fn_name": "f", "inputs": [[3, "a"]], "outputs": [[7]]})
    with pytest.raises(AssertionError, match=r"^f\(3, 'a'\) returned 8, not 7$"):
        exec(tests.cases[0].code, {"candidate": lambda *_: 8})


def test_a_dictionary_that_a_function_gets_has_whole_numbers_as_keys() -> None:
    given: list[Any] = []

    def candidate(*arguments: Any) -> int:
        given.extend(arguments)
        return 1

    tests = read_tests({"fn_name": "f", "inputs": [[{"1": 2}, {"a": 3}]], "outputs": [1]})
    exec(tests.cases[0].code, {"candidate": candidate})

    assert given == [{1: 2}, {"a": 3}]


CALLED = [{"input": "[1, 2]", "output": "3", "testtype": "functional"}]
METADATA = {"func_name": "f"}
COLUMN = {"metadata": json.dumps(METADATA)}
TWO = [CALLED[0] | {"fn_name": name} for name in ("f", "g")]
CALL = {"type": "function_call", "fn_name": "f", "input": [[1, 2]], "output": [3]}
PAIR: dict[str, Any] = {"inputs": ["[1, 2]"], "outputs": ["3"]}


@pytest.mark.parametrize(
    ("answer", "columns"),
    [
        (CALLED, COLUMN),
        (CALLED, {"metadata": METADATA}),
        (json.dumps(CALLED), {"fn_name": "f"}),
        ([CALLED[0] | {"metadata": METADATA}], {}),
        ([CALLED[0] | {"fn_name": "f"}], {}),
        ({"test_cases": [CALL]}, {}),
        (PAIR | {"func_name": "f"}, {}),
        (PAIR | {"entry_point": "Solution().f"}, {}),
        (PAIR, COLUMN),
    ],
)  # fmt: skip
def test_the_function_under_test_is_named_in_several_places(
    answer: Any, columns: dict[str, Any]
) -> None:
    tests = read_tests(answer, columns)

    assert (tests.entry_point, tests.provided, len(tests.cases)) == ("f", True, 1)
    assert "f([1, 2])" in tests.cases[0].code


@pytest.mark.parametrize("answer", [CALLED, TWO, [*CALLED, {"input": "1", "output": "2"}]])
def test_tests_of_a_function_without_one_name_are_refused(answer: Any) -> None:
    with pytest.raises(BadReferenceError, match="its name, the same in all"):
        read_tests(answer)


def test_a_program_that_prints_needs_no_name() -> None:
    printed = [{"input": "1", "output": "2", "testtype": "stdin"}]

    assert read_tests(printed, {"metadata": "{}"}).cases == [Case("1", "2")]
    assert read_tests(printed, {"metadata": '{"func_name": null}'}).cases == [Case("1", "2")]


def test_code_that_only_defines_tests_has_a_case_for_each() -> None:
    code = "def test_a():\n    assert f(1)\n\ndef test_b(x=1):\n    assert f(x)\n"

    assert [case.code.split()[-1] for case in read_tests(code).cases] == ["test_a()", "test_b()"]
    assert len(read_tests(f"{code}\ntest_a()\n").cases) == 1


@pytest.mark.parametrize(
    "code",
    [
        "def run():\n    assert f(1)\n",
        "def test_a(tmp_path):\n    assert f(1)\n",
        "@given(x)\ndef test_a():\n    assert f(1)\n",
        "class TestF:\n    def setup_method(self):\n        assert f(1)\n",
        "async def test_a():\n    assert f(1)\n",
    ],
)
def test_code_whose_asserts_never_run_is_refused(code: str) -> None:
    with pytest.raises(BadReferenceError):
        read_tests(code)
