"""The `code` verifier with its real sandbox: verdicts, and programs that want a better one."""

import importlib.util
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError, Item, Message, Verdict
from reward.verifiers.programs.code import CodeParams, CodeVerifier
from tests.integration.reward.conftest import Service

pytestmark = pytest.mark.usefixtures("isolation")

ADD = "def add(a, b):\n    return a + b\n"
ADD_ASSERTS = ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]
HUMANEVAL = {
    "prompt": 'def poly(x):\n    return x * x\n\n\ndef root(x):\n    """The root of poly."""\n',
    "entry_point": "root",
    "test": "def check(candidate):\n    for y in (4, 9):\n        assert poly(candidate(y)) == y\n",
}


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    found = CodeVerifier()
    yield found
    found.close()


Score = Callable[..., Verdict]


@pytest.fixture
def score(verifier: CodeVerifier) -> Score:
    def scored(
        completion: str,
        answer: Any,
        prompt: str | list[Message] = "",
        columns: dict[str, Any] | None = None,
        **params: Any,
    ) -> Verdict:
        limits = {"time_limit": 1.0, "memory_mb": 128, **params}
        item = Item("code", prompt, completion, answer, {}, columns or {})
        return verifier.score(item, CodeParams(**limits))

    return scored


def outcome(verdict: Verdict) -> tuple[str, float | None]:
    return (str(verdict.status), verdict.reward)


def test_a_program_that_passes_its_asserts_is_correct(score: Score) -> None:
    assert outcome(score(ADD, ADD_ASSERTS)) == ("correct", 1.0)
    assert outcome(score("def add(a, b):\n return 3", ADD_ASSERTS)) == ("wrong", 0.0)


def test_credit_can_be_the_fraction_of_passed_tests(score: Score) -> None:
    tests = [*ADD_ASSERTS, "assert add(0, 3) == 3", "assert add(5, 5) == 10"]
    three = "def add(a, b):\n return 3"

    verdict = score(three, tests, credit="fraction")

    assert outcome(verdict) == ("partial", 0.5)
    assert verdict.detail == (
        "passes 2 of 4 tests; test 2 of 4: AssertionError at: assert add(2, 2) == 4"
    )
    assert outcome(score("def add(a, b): pass", tests, credit="fraction")) == ("wrong", 0.0)
    assert outcome(score(three, tests)) == ("wrong", 0.0)


def test_printed_output_is_compared(score: Score) -> None:
    tests = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4"}]

    assert outcome(score("print(sum(map(int, input().split())))", tests)) == ("correct", 1.0)
    verdict = score("input()\nprint(3)", tests)
    assert outcome(verdict) == ("wrong", 0.0)
    assert verdict.detail == "test 2 of 2: printed '3' in line 1, not '4'"


@pytest.mark.parametrize(
    "function",
    [
        "def f(a: List[int], b: Optional[Dict] = None) -> int: return sum(a)",
        "class Solution:\n    def f(self, a: List[int]) -> int: return reduce(add, a)",
        "def f(a): return sum(deque(Counter(a).elements()))",
        "def f(a): heapify(a); return floor(pow(10, 0)) * sum(a[: bisect_left(a, inf)])",
        "def f(a): return sum(a) if math and re and sys and maxsize and time(1).hour else 0",
        "def f(a): return sum(array.array('i', a)) if time.time() and os.sep else 0",
        "def f(a): return sum(SortedList(a))",
        "def f(a): return sum(a) if np.array(a).sum() else 0",
        # A program's own name goes before.
        "def gcd(a): return sum(a)\ndef f(a): return gcd(a)",
        "def f(a, depth=3000): return sum(a) if not depth else f(a, depth - 1)",
    ],
)
def test_a_program_of_a_function_test_may_use_what_its_judge_has_imported(
    score: Score, function: str
) -> None:
    tests = {"fn_name": "f", "inputs": ["[1, 2, 3]"], "outputs": ["6"]}

    if "np" in function and importlib.util.find_spec("numpy") is None:
        pytest.skip("needs numpy")
    assert outcome(score(function, tests)) == ("correct", 1.0)


SOLUTION = "class Solution:\n    def f(self, a: List[int]) -> int: return sum(deque(a))"


@pytest.mark.parametrize(
    "tests",
    [
        ["assert Solution().f([1, 2, 3]) == 6"],
        {"test": "def check(f):\n    assert f(a=[1, 2, 3]) == 6", "entry_point": "Solution().f"},
        {
            "prompt": "from typing import *\n\nclass Node:\n    pass\n",
            "test": "def check(f):\n    assert f([1, 2, 3]) == 6",
            "entry_point": "Solution().f",
        },
        [{"input": "[1, 2, 3]", "output": "6", "testtype": "functional", "fn_name": "f"}],
    ],
)
def test_a_program_in_leetcodes_form_imports_nothing(score: Score, tests: Any) -> None:
    assert outcome(score(SOLUTION, tests)) == ("correct", 1.0)
    assert outcome(score(SOLUTION.replace("sum", "max"), tests)) == ("wrong", 0.0)


@pytest.mark.parametrize(
    "test",
    [
        "def test_add():\n    assert add(1, 2) == 3",
        "import pytest\nfrom solution import add\n\ndef test_add():\n    assert add(1, 2) == 3",
        "from solution import add as plus\n\ndef test_add():\n    assert plus(1, 2) == 3",
        "class TestAdd:\n    def test_it(self):\n        assert add(1, 2) == 3",
        "import unittest\n\nclass Cases(unittest.TestCase):\n    @classmethod\n"
        "    def setUpClass(cls):\n        cls.sum = 3\n"
        "    def test_add(self):\n        self.assertEqual(add(1, 2), self.sum)\n\n"
        "if __name__ == '__main__':\n    unittest.main()",
    ],
)
def test_tests_in_functions_and_classes_are_run(score: Score, test: str) -> None:
    if "import pytest" in test and importlib.util.find_spec("pytest") is None:
        pytest.skip("needs pytest")
    assert outcome(score(ADD, test)) == ("correct", 1.0)
    assert outcome(score("def add(a, b):\n    return 4", test)) == ("wrong", 0.0)


REVERSED = """class Solution:
    def f(self, head: Optional[ListNode]) -> Optional[ListNode]:
        back = None
        while head:
            back, head = ListNode(head.val, back), head.next
        return back
"""
OWN = f"class ListNode:\n    def __init__(self, v, n): self.val, self.next = v, n\n\n\n{REVERSED}"
MERGED = """def f(lists: List[ListNode]) -> Optional[ListNode]:
    nodes = []
    for node in lists:
        while node:
            nodes.append(node)
            node = node.next
    nodes.sort(key=lambda node: node.val)
    for one, other in zip(nodes, nodes[1:]):
        one.next = other
    return nodes[0] if nodes else None
"""
MIRRORED = """class Solution:
    def f(self, root: "TreeNode") -> "TreeNode":
        if root:
            root.left, root.right = self.g(root.right), self.g(root.left)
        return root
    def g(self, root):
        return self.f(root)
"""


@pytest.mark.parametrize(
    ("program", "given", "wanted"),
    [
        (REVERSED, "[1, 2, 3]", "[3, 2, 1]"),
        (REVERSED, "[]", "[]"),
        (OWN, "[1, 2]", "[2, 1]"),
        (MERGED, "[[1, 4], [], [2]]", "[1, 2, 4]"),
        (MERGED, "[]", "[]"),
        (MIRRORED, "[1, 2, 3, null, 4]", "[1, 3, 2, null, null, 4]"),
        ("def f(root: TreeNode) -> int: return root.right.val", "[1, 2, 3]", "3"),
    ],
)
def test_lists_become_nodes_if_the_program_wants_them(
    score: Score, program: str, given: str, wanted: str
) -> None:
    right = {"fn_name": "f", "inputs": [given], "outputs": [wanted]}
    wrong = right | {"outputs": ["[7]"]}

    assert outcome(score(program, right)) == ("correct", 1.0)
    assert outcome(score(program, wrong)) == ("wrong", 0.0)


def test_a_cycle_of_nodes_is_wrong(score: Score) -> None:
    program = "def f(a: ListNode) -> ListNode:\n    a.next = a\n    return a"
    tests = {"fn_name": "f", "inputs": ["[1]"], "outputs": ["[1]"]}

    assert "with a cycle" in score(program, tests, memory_mb=512).detail


def test_a_recursion_may_be_deep(score: Score) -> None:
    deep = "@cache\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)"
    tests = {"fn_name": "f", "inputs": ["20000"], "outputs": ["20000"]}

    assert outcome(score(deep, tests, memory_mb=512)) == ("correct", 1.0)
    unlimited = "(resource.RLIM_INFINITY, resource.RLIM_INFINITY)"
    script = f"import resource\nresource.setrlimit(resource.RLIMIT_STACK, {unlimited})\nprint(1)"
    assert outcome(score(script, [{"input": "", "output": "1"}])) == ("correct", 1.0)


def test_other_programs_import_what_they_use(score: Score) -> None:
    verdict = score("print(deque([1])[0])", [{"input": "", "output": "1"}])

    assert verdict.detail == "test 1 of 1: NameError: name 'deque' is not defined (exit code 1)"


def test_integers_have_any_length(score: Score) -> None:
    long = "9" * 5000
    printed = [{"input": long, "output": long}]

    assert score("print(int(input()))", printed).reward == 1.0
    called = {"fn_name": "f", "inputs": [long], "outputs": [f"[{long}]"]}
    assert score("def f(x): return [int(str(x))]", called).reward == 1.0
    assert score("def f(x): return [x + 1]", called).reward == 0.0
    assert score("def f(): return 10**5000", ["assert len(str(f())) == 5001"]).reward == 1.0


def test_a_program_that_prints_the_right_thing_and_fails_is_wrong(score: Score) -> None:
    verdict = score("print(3)\n1 / 0", [{"input": "", "output": "3"}])

    assert verdict.detail == "test 1 of 1: ZeroDivisionError: division by zero (exit code 1)"


def test_a_test_function_with_helpers_of_the_prompt(score: Score) -> None:
    assert outcome(score("    return x ** 0.5\n", HUMANEVAL)) == ("correct", 1.0)
    assert outcome(score("    pass\n", HUMANEVAL)) == ("wrong", 0.0)
    whole = "So:\n```python\ndef root(x):\n    return x ** 0.5\n```"
    assert outcome(score(whole, HUMANEVAL)) == ("correct", 1.0)


def test_a_humaneval_row_whose_answer_is_its_test_column(score: Score) -> None:
    prompt, test = HUMANEVAL["prompt"], HUMANEVAL["test"]
    columns = {"entry_point": "root", "task_id": "HumanEval/0"}
    chat = [{"role": "system", "content": "Go on."}, {"role": "user", "content": prompt}]

    for asked in (prompt, chat):
        right = score("    return x ** 0.5\n", test, asked, columns)
        wrong = score("    return x\n", test, asked, columns)

        assert (outcome(right), outcome(wrong)) == (("correct", 1.0), ("wrong", 0.0))


@pytest.mark.parametrize(
    "prompt",
    [
        "def root(x):",
        "def root(x):\n",
        "def root(x):  # Of squares.\n    # Not of others.\n",
        "import math\n\ndef root(\n    x,\n):\n",
    ],
)
def test_a_prompt_may_end_with_the_head_of_the_function(score: Score, prompt: str) -> None:
    tests = {
        "prompt": prompt,
        "entry_point": "root",
        "test": "def check(candidate):\n    assert candidate(9) == 3\n",
    }
    whole = "So:\n```python\ndef root(x):\n    return x ** 0.5\n```"

    assert outcome(score("\n    return x ** 0.5\n", tests)) == ("correct", 1.0)
    assert outcome(score(whole, tests)) == ("correct", 1.0)
    assert outcome(score("\n    return x\n", tests)) == ("wrong", 0.0)


def test_a_prompt_about_the_function_stays_out_of_the_program(score: Score) -> None:
    asked = 'Complete this function:\n\ndef root(x):\n    """The root of x."""\n'
    whole = "So:\n```python\ndef root(x):\n    return x ** 0.5\n```"
    tests = {"entry_point": "root", "test": "def check(f):\n    assert f(9) == 3\n"}

    assert outcome(score(whole, tests, prompt=asked)) == ("correct", 1.0)


def test_helpers_of_the_prompt_cannot_be_replaced_by_the_program(score: Score) -> None:
    cheat = (
        "```python\nclass Any:\n def __eq__(s, o): return True\n"
        "def poly(x): return Any()\ndef root(x): return 0\n```"
    )
    assert outcome(score(cheat, HUMANEVAL)) == ("wrong", 0.0)


def test_modules_in_a_test_are_real_ones(score: Score) -> None:
    cheat = "class math:\n isclose = lambda *a: True\ndef f(): return 1.0"

    assert outcome(score(cheat, ["assert math.isclose(f(), 2.0)"])) == ("wrong", 0.0)


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): x.sort()", "x = [2, 1]\nf(x)\nassert x == [1, 2]"),
        ("def f(x): x['b'] = x.pop('a')", "x = {'a': 1}\nf(x)\nassert x == {'b': 1}"),
        ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(g, x): return g(g(x))", "assert f(lambda x: x * 3, 2) == 18"),
        ("def f(x): raise ValueError('no')", "try: f(1)\nexcept ValueError: x = 1\nassert x"),
        (
            "class Stack:\n def __init__(s): s.x = []\n def push(s, x): s.x.append(x)\n"
            " def __len__(s): return len(s.x)",
            "s = Stack()\ns.push(1)\ns.push(2)\nassert len(s) == 2 and s.x == [1, 2]",
        ),
        ("class P:\n def __init__(s, n): s.n = n\ndef f(ps): return [p.n for p in ps]",
         "assert f([P(1), P(2)]) == [1, 2]"),
        ("def f(): return {(1, 2): {3}, 'x': None, 4.5: b'y', True: 1 + 2j, 6: frozenset([7])}",
         "assert f() == {(1, 2): {3}, 'x': None, 4.5: b'y', True: 1 + 2j, 6: frozenset([7])}"),
        ("def f(): return 7 ** 9999, float('inf'), '\\ud800 é'",
         "assert f() == (7 ** 9999, float('inf'), '\\ud800 é')"),
        ("from collections import *\ndef f(): return Counter('aab'), deque([1]), range(3)",
         "a, b, c = f()\nassert a == {'a': 2, 'b': 1} and list(b) == [1] and c == range(3)"),
        ("from fractions import *\ndef f(): return Fraction(1, 3)", "assert f() * 3 == 1"),
        ("x = 5", "assert x == 5"),
        ("def copy(x): return [x]", "assert copy(5) == [5]"),
        ("def f(): return 3", "f = (lambda g: lambda: g() + 1)(f)\nassert f() == 4"),
    ],
)  # fmt: skip
def test_tests_and_programs_exchange_plain_values(score: Score, program: str, test: str) -> None:
    verdict = score(program, [test])
    assert (verdict.status, verdict.detail) == ("correct", "passes 1 of 1 tests")


NEEDED = "class Any:\n def __eq__(s, o): return True\n __ne__ = __lt__ = __gt__ = __eq__\n"
FORGERIES = {
    "sys.exit(0) at once": "import sys\nsys.exit(0)",
    "sys.exit(0) in the call": "import sys\ndef add(a, b): sys.exit(0)",
    "os._exit(0) at once": "import os\nos._exit(0)",
    "os._exit(0) in the call": "import os\ndef add(a, b): os._exit(0)",
    "an object that equals everything": NEEDED + "def add(a, b): return Any()",
    "the class itself": NEEDED + "class add:\n def __new__(c, a, b): return Any()",
    "an int that equals everything": (
        "class Int(int):\n __eq__ = lambda s, o: True\n __hash__ = int.__hash__\n"
        "def add(a, b): return Int(7)"
    ),
    "another AssertionError": (
        "import builtins\nclass Never(Exception): pass\nbuiltins.AssertionError = Never\n"
        "def add(a, b): raise Never"
    ),
    "other builtins": "import builtins\nbuiltins.isinstance = builtins.print = lambda *a: True\n"
    "def add(a, b): return True",
    "frames of the harness": (
        "import sys\ndef add(a, b):\n frame = sys._getframe()\n while frame:\n"
        "  for x in frame.f_locals.values():\n   if isinstance(x, (str, dict, list)):\n"
        "    assert 'assert add' not in str(x)[:10000]\n  frame = frame.f_back\n return 7"
    ),
    "the outcome's descriptor": (
        "import os\ndef add(a, b):\n for fd in range(3, 256):\n  try: os.write(fd, b'"
        + json.dumps(["passed", ""])
        + "\\n')\n  except OSError: pass\n return 7"
    ),
    "a reply that is no reply": (
        "import os\nbody = b'[\"passed\", 1]'\n"
        "os.write(3, len(body).to_bytes(4, 'little') + body)\ndef add(a, b): return 7"
    ),
    "names that are no functions": "add = 7",
    "an object that is no function": NEEDED + "add = Any()",
    "an import that fails": "def add(a, b): raise ImportError('x')",
    "no names at all": "",
    "a huge reply": "import os\nos.write(3, b'\\xff\\xff\\xff\\xff')\ndef add(a, b): return 7",
    "a deep reply": (
        "import os\nbody = b'[' * 100000\nos.write(3, len(body).to_bytes(4, 'little') + body)\n"
        "def add(a, b): return 7"
    ),
    "threads that stay": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
        "def add(a, b): return 7"
    ),
    "killing everything": "import os\ndef add(a, b):\n os.kill(-1, 9)\n os.kill(1, 9)\n return 7",
}


@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_verdict_cannot_be_forged(score: Score, program: str) -> None:
    """The verdict must be `wrong`. An error would mask the forgery from the loss."""
    for answer in (ADD_ASSERTS, {"entry_point": "add", "test": CHECK}):
        verdict = score(f"```python\n{program}\n```", answer)

        expected = ("wrong", 0.0) if program else ("no_answer", 0.0)
        assert outcome(verdict) == expected, verdict.detail


CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n"


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("while True: pass", "time_limit"),
        ("import time\ntime.sleep(1000)", "time_limit"),
        ("x = bytearray(1 << 30)", "memory_limit"),
        ("while True: print('x' * 1000000)", "output_limit"),
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("import socket\nsocket.socket()", "PermissionError"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_program_that_hits_a_limit_is_wrong(score: Score, program: str, detail: str) -> None:
    # Time enough for what ends by itself, on a machine that is busy.
    limits = {"time_limit": 1.0 if detail == "time_limit" else 10.0}
    printing = score(program, [{"input": "", "output": "passed"}], **limits)
    calling = score(f"{program}\ndef add(a, b): pass", ADD_ASSERTS, **limits)

    assert outcome(printing) == outcome(calling) == ("wrong", 0.0)
    assert detail in printing.detail
    assert detail in calling.detail


def test_a_program_cannot_hide_its_end_by_closing_descriptors(score: Score) -> None:
    # The test learns of the program's end only after the report. Otherwise the test would end
    # first, and the sandbox would end the program.
    program = "import os, time\nos.closerange(3, 100)\ntime.sleep(.3)\nos._exit(7)"

    assert "exit code 7" in score(program, ADD_ASSERTS).detail


def test_all_tests_together_have_the_items_time(score: Score) -> None:
    tests = [{"input": "", "output": "1"}] * 1000

    verdict = score("import time\ntime.sleep(.4)\nprint(1)", tests, timeout=2, credit="fraction")

    assert verdict.status == "partial"
    assert verdict.detail.endswith("time_limit")


@pytest.mark.parametrize(
    "tests",
    [["assert add(1,"], ["assert 1 == 2"], ["import nothing_such\nassert 1 == 2"],
     {"entry_point": "add", "test": "def check(candidate):\n    assert 1 == 2\n"},
     {"test_setup_code": "1 / 0", "test_list": ADD_ASSERTS},
     ["class X: pass\nassert add(X(), 1) == 3"]],
)  # fmt: skip
def test_a_test_that_cannot_be_passed_is_an_error_of_the_dataset(score: Score, tests: Any) -> None:
    with pytest.raises(BadReferenceError):
        score(ADD, tests)


async def test_code_is_scored_over_http(start: Callable[..., Service]) -> None:
    service = await start().ready()
    items = [
        {"id": "good", "verifier": "code", "completion": ADD, "answer": ADD_ASSERTS},
        {"id": "bad", "verifier": "code", "completion": "while True: pass", "answer": ADD_ASSERTS,
         "params": {"time_limit": 0.5}},
        {"id": "row", "verifier": "code", "completion": ADD, "answer": ["assert ("], "row": 17},
        {"id": "much", "verifier": "code", "completion": ADD, "answer": ADD_ASSERTS,
         "params": {"memory_mb": 1 << 20}},
    ]  # fmt: skip
    async with service.client() as client:
        answer = (await client.post("/v1/score", json={"items": items})).json()["results"]
        listed = (await client.get("/v1/verifiers")).json()["verifiers"]

    assert [one["status"] for one in answer] == ["correct", "wrong", "error", "error"]
    assert answer[1]["detail"].startswith("test 1 of 2: time_limit")
    assert "row 17" in answer[2]["detail"]
    assert "--worker-memory-mb" in answer[3]["detail"]
    (code,) = [one for one in listed if one["name"] == "code"]
    assert code["available"]
    assert "namespaces" in code["notice"]


async def test_code_without_isolation_is_listed_as_unavailable(
    start: Callable[..., Service],
) -> None:
    service = await start("--code-python", "/no-such-python").ready()
    item = {"id": "0", "verifier": "code", "completion": ADD, "answer": ADD_ASSERTS}
    async with service.client() as client:
        health = (await client.get("/readyz")).json()
        refused = await client.post("/v1/score", json={"items": [item]})

    assert health["status"] == "ready"
    assert "/no-such-python cannot be started" in health["unavailable"]["code"]
    assert refused.status_code == 422
    assert "docs/sandbox.md" in refused.text
