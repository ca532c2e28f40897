"""The forms of code tests in datasets, and the place of the program in a completion."""

import json
import sys
from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError
from reward.verifiers.programs.code import CodeParams, Result, _verdict
from reward.verifiers.programs.code_tests import Case, Suite, read_tests
from reward.verifiers.programs.program_output import difference
from reward.verifiers.programs.program_text import find_program


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
        {
            "task_id": "0",
            "prompt": "def f(x):\n",
            "entry_point": "f",
            "test": "def check(c): assert c(1)",
        }
    )

    code = "def check(c): assert c(1)\n\ncheck(candidate)\n"
    assert tests == Suite([Case(code=code)], entry_point="f", prompt="def f(x):\n")


def test_imports_of_an_mbpp_row_are_read() -> None:
    tests = read_tests({"test_imports": ["import math"], "test_list": ["assert f(1)"]})

    assert tests.setup.strip() == "import math"
    columns = {"test_imports": ["import math"], "test_setup_code": "def same(a): assert a"}
    by_columns = [read_tests(answer, columns) for answer in ("assert f(1)", ["same(f(1))"])]
    assert {tests.setup for tests in by_columns} == {"def same(a): assert a\nimport math"}


def test_reading_tests_leaves_the_limit_of_integers_as_it_was() -> None:
    limit = sys.get_int_max_str_digits()
    with pytest.raises(BadReferenceError):
        read_tests({"fn_name": "f", "inputs": [1], "outputs": [1]})
    assert sys.get_int_max_str_digits() == limit


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("3\n", "3"),
        ("a \r\nb\n\n", "a\nb"),
        ("0.333333", "0.333333333333"),
        ("2.50", "2.5"),
        ("2", "2.0"),
        ("-0.0", "0.0"),
        ("1e3", "1000.0"),
        ("[0.30000000000000004, 1]", "[0.3, 1]"),
        ("x = .5, y: 1.0000001", "x = 0.5, y: 1.0"),
        ("123456789012.3456", "123456789012.0"),
        ("3.0", "3"),
        ("1e-9", "0"),
        ("-0.0", "0"),
        ("1e3", "1000"),
        ("2.9999999999 4", "3 4"),
        (" 5", "5"),
        ("\n5", "5"),
        ("1\n 5", "1\n5"),
        ("0.5  1", "0.5 1"),
        ("Case  1:\tYES", "Case 1: YES"),
    ],
)
def test_output_is_equal_but_for_blanks_and_decimals_within_a_millionth(
    given: str, wanted: str
) -> None:
    assert difference(given, wanted) == ""


@pytest.mark.parametrize(
    ("given", "wanted", "said"),
    [
        ("0.4", "0.333333333333", "printed '0.4' in line 1, not '0.333333333333'"),
        ("1000001", "1000000", "printed '1000001' in line 1, not '1000000'"),
        ("3.001", "3", "printed '3.001' in line 1, not '3'"),
        ("1\n\n5", "1\n5", "printed '' in line 2, not '5'"),
        ("1000000008.0", "1000000007", "printed '1000000008.0' in line 1, not '1000000007'"),
        ("1e999", f"1{'0' * 999}", f"printed '1e999' in line 1, not '1{'0' * 79}'"),
        ("1e20", "100000000000000000001", "printed '1e20' in line 1, not '100000000000000000001'"),
        ("1000000.5", "1000000", "printed '1000000.5' in line 1, not '1000000'"),
        ("007", "7", "printed '007' in line 1, not '7'"),
        ("1.2.3.40", "1.2.3.4", "printed '1.2.3.40' in line 1, not '1.2.3.4'"),
        ("v1.50", "v1.5", "printed 'v1.50' in line 1, not 'v1.5'"),
        ("nan", "0.5", "printed 'nan' in line 1, not '0.5'"),
        ("0.5 0.5", "0.5", "printed '0.5 0.5' in line 1, not '0.5'"),
        ("a bc", "ab c", "printed 'a bc' in line 1, not 'ab c'"),
        ("1e999", "1.5", "printed '1e999' in line 1, not '1.5'"),
        ("1.0", "1.0\n2", "printed 1 lines, not 2"),
    ],
)
def test_other_output_is_wrong(given: str, wanted: str, said: str) -> None:
    assert difference(given, wanted) == said


def test_a_part_for_each_test_adds_up_to_the_reward() -> None:
    half = [Result(True), Result(False, "no"), Result(True), Result(False, "no")]

    def parts(results: list[Result], **params: Any) -> tuple[float | None, list[Any]]:
        verdict = _verdict(results, 4, 17, CodeParams(**params))
        return verdict.reward, verdict.parts

    quarter = (17, 0.25)
    assert parts(half, credit="fraction") == (0.5, [quarter, (17, 0.0), quarter, (17, 0.0)])
    assert parts(half[:2]) == (0.0, [(17, 0.0), (17, 0.0)])
    assert parts([Result(True)] * 4) == (1.0, [quarter] * 4)


@pytest.mark.parametrize(
    "answer",
    [None, 5, [], "", "  ", {}, {"inputs": ["1"], "outputs": []}, [1], ["assert f()", {}],
     {"test": "def check(candidate): pass"}, {"test_list": "assert f()"}, "[1", {"test": None},
     ["f(1) == 2"], {"test": "f(1) == 2"}, {"inputs": [None], "outputs": ["1"]},
     {"test": "def check(candidate): pass", "entry_point": "f"},
     {"fn_name": "f", "inputs": [1], "outputs": [1]},
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
        ("```Python\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nRun it:\n```bash\npython x.py\n```", "x = 1\n"),
        ("```python\nx = 1\n", "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        # A block without a tag, of output or usage, is not the program.
        ("```python\nx = 1\n```\nIt prints:\n```\n7\n```", "x = 1\n"),
        ("```\ndef f(): return 1\n```\nIt prints:\n```\n7\n```", "def f(): return 1\n"),
        ("```\ndef f(): return 1\n```\nUsage:\n```\nf()\n```", "def f(): return 1\n"),
        ("```\nx = 1\n```\nIt prints:\n```\nhello world\n```", "x = 1\n"),
        ("```\nprint(2)\n```\nIt prints:\n```\nSum: 2\n```", "print(2)\n"),
        ("```\nprint(2)\n```\nIt prints:\n```\nn = 2\n```", "print(2)\n"),
        ("```\nx = 1\n```\nbetter:\n```\nprint(2)\n```", "print(2)\n"),
        ("```\n7\n```\n```\n8\n```", "8\n"),
        # Nor is a block of Python that shows output, or how to use the program.
        ("```python\ndef f(): return 1\n```\n```python\nprint(f())\n```", "def f(): return 1\n"),
        ("```python\nprint(f())\n```\n```python\ndef f(): return 1\n```", "def f(): return 1\n"),
        (
            "```python\ndef f(): return 1\n```\n```python\nassert f() == 1\n```",
            "def f(): return 1\n",
        ),
        ("```python\nprint(2)\n```\n```python\n# prints 2\n```", "print(2)\n"),
        ("```python\nprint(2)\n```\n```python\n2\n```", "print(2)\n"),
        ("```python\nprint(2)\n```\n```python\n>>> f()\n2\n```", "print(2)\n"),
        # A fence's indentation is not the program's.
        ("1. So:\n   ```python\n   if x:\n       y\n   ```\n", "if x:\n    y\n"),
        ("- Use\n\n    ```python\n    x = 1\n\n  y = 2\n    ```\n", "x = 1\n\ny = 2\n"),
        ("\t```python\n\tx = 1\n\t```", "x = 1\n"),
        ("1. ```python\n   x = 1\n   ```\n", "x = 1\n"),
        ("* - ```python\n    x = 1\n    ```\n", "x = 1\n"),
        ("> ```python\n> if x:\n>     y\n> ```\n", "if x:\n    y\n"),
        # A fence in a docstring is further in than the block's.
        (
            '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```\n',
            'def f():\n    """\n    ```\n    f()\n    ```\n    """\n',
        ),
        # Nothing closes the first block.
        ("```python\nx = 1\n\n```python\nx = 2\n```\n", "x = 2\n"),
        # No block: the marks are in one line.
        ("Use ```x = 1``` as above", "Use ```x = 1``` as above"),
        ("```x = 1```\n", "```x = 1```\n"),
        # A fence at the end of a line of text, or of code.
        ("So: ```python\nx = 1\n```", "x = 1\n"),
        ("<answer>```python\nx = 1\n```</answer>", "x = 1\n"),
        ("```python\nx = 1```", "x = 1"),
        ("```python\nx = 1```\nThat is it.", "x = 1"),
        ("```python\ns = '```'\nx = 1\n```", "s = '```'\nx = 1\n"),
        # The prompt has opened the block.
        ("print(1)\n```\n", "print(1)\n"),
        ("print(1)\n```\nIt prints:\n```\n1\n```\n", "print(1)\n"),
        ("n = 1\n```\nprint(1)\n```\n", "print(1)\n"),
        ("So:\n```\nx = 1\n```\n", "x = 1\n"),
        # Blocks in lists, quotations and Markdown.
        ("> 1. So\n>    ```python\n>    x = 1\n>    ```\n", "x = 1\n"),
        (">> ```python\n>> x = 1\n>> ```\n", "x = 1\n"),
        ("````markdown\n# So\n```python\nx = 1\n```\n````\n", "x = 1\n"),
        # Python under another tag, and without a fence.
        ("```pypy3\nx = 1\n```", "x = 1\n"),
        ("```cpp\nint x;\n```\n```code\nx = 1\n```", "x = 1\n"),
        ("It is\n<answer>\nx = 1\n</answer>", "x = 1\n"),
    ],
)
def test_the_last_block_of_python_is_the_program(completion: str, program: str) -> None:
    found = find_program(completion, ASSERTS)

    assert found.source == program
    assert 0 < found.end <= len(completion)


def test_a_program_that_is_asked_reads_its_input() -> None:
    answer = "```python\nprint(2 * int(input()))\n```\nFor 4:\n```python\nprint(8)\n```\n"
    asked = Suite([Case("4\n", "8\n")])

    assert find_program(answer, asked).source == "print(2 * int(input()))\n"


def test_a_block_that_defines_the_function_is_the_program() -> None:
    answer = "```python\ndef f(x): return 2 * x\n```\nUsage:\n```python\nprint(f(2))\n```\n"

    found = find_program(answer, FUNCTION._replace(prompt=""))
    assert found == ("def f(x): return 2 * x\n", answer.index("```\nUsage"))


def test_a_function_may_be_a_lambda() -> None:
    answer = "```python\nf = lambda x: 2 * x\n```\nUsage:\n```python\nprint(f(2))\n```\n"

    assert find_program(answer, FUNCTION._replace(prompt="")).source == "f = lambda x: 2 * x\n"


def test_a_completion_may_continue_the_prompt() -> None:
    found = find_program("    return 2 * x\n", FUNCTION).source

    assert found == PROMPT + "    return 2 * x\n"


def test_a_block_that_the_prompt_has_opened_continues_the_function() -> None:
    found = find_program("    return 2 * x\n```\nIt doubles.\n", FUNCTION)

    assert found == (PROMPT + "    return 2 * x\n", len("    return 2 * x\n"))


def test_a_completion_that_writes_the_function_out_keeps_the_prompts_imports() -> None:
    found = find_program("def f(x): return 2 * x\n", FUNCTION).source

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


def test_a_prompt_in_words_is_no_part_of_the_program() -> None:
    answer = {"prompt": "Write f.", "test": CHECK, "entry_point": "f"}

    assert read_tests(answer).prompt == ""
    assert read_tests(answer | {"prompt": "from math import *\n"}).prompt == "from math import *\n"


@pytest.mark.parametrize("answer", ["    return 2 * x\n", "def f(x):\n    return x\n", CHECK])
def test_a_test_that_cannot_fail_is_refused_as_a_reference(answer: str) -> None:
    with pytest.raises(BadReferenceError):
        read_tests(answer, {"task_id": "HumanEval/0"})
