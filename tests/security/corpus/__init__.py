"""Programs with the verdict that each deserves, for the verifier `code`.

`right.txt` holds correct programs of unusual style, `wrong.txt` wrong ones that want another
verdict, and `forged.txt` definitions of f(a, b) that do not add but want to pass for it, which are
tried in every form of tests. A program begins with `== name`. Its tests follow `-- form`:

    -- assert         Python that asserts (MBPP)
    -- check NAME     check(candidate) for the function NAME (HumanEval); `-- prompt` may follow
    -- calls NAME     a line for each call: [arguments, result] as JSON (APPS, LiveCodeBench)
    -- io             a line for each run: [input, output] as JSON

`!error` after the form: nobody can tell, as the program's own special methods decide, or the test
does what its process cannot do for the program. So there is no reward at all.
`!fault` after the form: it once got another verdict. The suite scores these each time.

`python -m tests.security.corpus` scores all of them with a reward service of its own.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ADDS = {
    "assert": ["assert f(1, 2) == 3", "assert f(2, 2) == 4"],
    "check": {
        "entry_point": "f",
        "test": "def check(candidate):\n"
        "    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n",
    },
    "calls": {"fn_name": "f", "inputs": [[1, 2], [2, 2]], "outputs": [3, 4]},
    "solution": {"fn_name": "add", "inputs": [[1, 2], [2, 2]], "outputs": [3, 4]},
}
SOLUTION = "\nclass Solution:\n    def add(self, a, b): return f(a, b)\n"


class Entry(NamedTuple):
    """One program."""

    name: str
    program: str
    answer: Any
    deserved: str
    """Its status: `correct`, `wrong` or `error`."""
    fault: bool = False
    """Whether it once had another."""

    def item(self) -> dict[str, Any]:
        """As a request to the reward service has it."""
        return {
            "id": self.name,
            "verifier": "code",
            "completion": self.program,
            "answer": self.answer,
            "params": {"time_limit": 2, "memory_mb": 256, "timeout": 60},
        }


def right() -> list[Entry]:
    """Correct programs: as they are written, and each in another spelling."""
    plain = list(_read("right", "correct"))
    chosen = random.Random(0)
    names = list(SPELLINGS)
    spelled = []
    for entry in plain:
        name = chosen.choice(names)
        spelled.append(
            entry._replace(
                name=f"{entry.name}, {name}",
                program=SPELLINGS[name](entry.program),
                fault=False,
            )
        )
    return plain + spelled


def wrong() -> list[Entry]:
    """Programs that want a verdict which they do not deserve."""
    return [*_read("wrong", "wrong"), *_forged()]


def _forged() -> Iterator[Entry]:
    for name, program, _ in _sections("forged"):
        for form, answer in ADDS.items():
            text = program + SOLUTION if form == "solution" else program
            yield Entry(f"{name}, {form}", _fenced(text), answer, "wrong")


def _read(file: str, deserved: str) -> Iterator[Entry]:
    for name, program, tests in _sections(file):
        form, _, body = tests.partition("\n")
        words = form.split()
        status = "error" if "!error" in words else deserved
        yield Entry(name, _fenced(program), _answer(words, body), status, "!fault" in words)


def _sections(file: str) -> Iterator[tuple[str, str, str]]:
    text = (HERE / f"{file}.txt").read_text()
    for section in text.split("\n== "):
        name, _, rest = section.removeprefix("== ").partition("\n")
        program, _, tests = rest.partition("\n-- ")
        yield name, f"{program}\n", tests


def _answer(form: list[str], body: str) -> Any:
    match form:
        case ["assert", *_]:
            return [body]
        case ["check", name, *_]:
            test, _, prompt = body.partition("\n-- prompt\n")
            return {"entry_point": name, "test": f"{test}\n", "prompt": prompt}
    pairs = [json.loads(line) for line in body.splitlines()]
    sides = {"inputs": [one for one, _ in pairs], "outputs": [one for _, one in pairs]}
    return sides if form[0] == "io" else {"fn_name": form[1], **sides}


def _fenced(program: str) -> str:
    return f"````python\n{program}````\n"


def _inner(completion: str) -> str:
    return completion.removeprefix("````python\n").removesuffix("````\n")


SPELLINGS = {
    "bare": _inner,
    "with thoughts": lambda text: (
        f"<think>\n```python\nexit(1)\n```\n</think>\nSo:\n\n{text}\nDone."
    ),
    "with CRLF": lambda text: text.replace("\n", "\r\n"),
    "with a byte order mark": lambda text: _fenced("\ufeff" + _inner(text)),
    "with a coding line": lambda text: _fenced(
        "#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n" + _inner(text)
    ),
    "with tildes and a language": lambda text: f"~~~~Python3\n{_inner(text)}~~~~",
    "after an earlier attempt": lambda text: f"```py\nexit(1)\n```\nBetter:\n{text}",
    "never closed": lambda text: text.removesuffix("````\n"),
    "with other blocks": lambda text: f"{text}\n```text\n1 2\n```\n```bash\npython x.py\n```\n",
}
