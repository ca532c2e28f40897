"""Programs whose functions a test calls: the names that they may use, the values that travel."""

import importlib.util
from typing import Any

import pytest

from tests.integration.reward.code.conftest import ADD, Score, outcome

pytestmark = pytest.mark.usefixtures("isolation")


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
