"""Programs that want a better verdict, and programs that hit a limit."""

import json

import pytest

from tests.integration.reward.code.conftest import ADD_ASSERTS, HUMANEVAL, Score, outcome

pytestmark = pytest.mark.usefixtures("isolation")


def test_a_recursion_may_be_deep(score: Score) -> None:
    deep = "@cache\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)"
    tests = {"fn_name": "f", "inputs": ["20000"], "outputs": ["20000"]}

    assert outcome(score(deep, tests, memory_mb=512)) == ("correct", 1.0)
    unlimited = "(resource.RLIM_INFINITY, resource.RLIM_INFINITY)"
    script = f"import resource\nresource.setrlimit(resource.RLIMIT_STACK, {unlimited})\nprint(1)"
    assert outcome(score(script, [{"input": "", "output": "1"}])) == ("correct", 1.0)


def test_a_program_that_prints_the_right_thing_and_fails_is_wrong(score: Score) -> None:
    verdict = score("print(3)\n1 / 0", [{"input": "", "output": "3"}])

    assert verdict.detail == "test 1 of 1: ZeroDivisionError: division by zero (exit code 1)"


def test_helpers_of_the_prompt_cannot_be_replaced_by_the_program(score: Score) -> None:
    cheat = (
        "```python\nclass Any:\n def __eq__(s, o): return True\n"
        "def poly(x): return Any()\ndef root(x): return 0\n```"
    )
    assert outcome(score(cheat, HUMANEVAL)) == ("wrong", 0.0)


def test_modules_in_a_test_are_real_ones(score: Score) -> None:
    cheat = "class math:\n isclose = lambda *a: True\ndef f(): return 1.0"

    assert outcome(score(cheat, ["assert math.isclose(f(), 2.0)"])) == ("wrong", 0.0)


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
