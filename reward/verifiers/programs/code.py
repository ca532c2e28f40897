"""The `code` verifier: does the program in the completion pass its tests?

Programs run in `reward.sandbox`, each test in a fresh sandbox. The expected results stay outside
the program's sandbox. Printed output is compared here. The code of a test runs in a second sandbox,
from which it calls the program's functions (`reward.sandbox.peer_protocol`). The verdict has a part
for each test, for dense rewards.
"""

import json
import re
import time
from typing import Literal, NamedTuple

from pydantic import Field

from reward.sandbox.limits import Limits
from reward.sandbox.probe import probe
from reward.sandbox.running_program import ProgramEnding, SandboxError
from reward.sandbox.sandbox_host import ProgramTask, Sandbox, SandboxOptions
from reward.verifiers.base import (
    BadReferenceError,
    Item,
    Verdict,
    Verifier,
    VerifierParams,
    broken,
    failed,
)
from reward.verifiers.programs.code_tests import Case, Suite, read_tests, with_body
from reward.verifiers.programs.program_output import difference
from reward.verifiers.programs.program_text import find_program, with_prompt
from services.contracts.scores import ScoreStatus
from services.contracts.thoughts import read_thoughts

# Seconds. The part of an item's deadline for starting a sandbox and ending a program.
_MARGIN = 1.0
_STARVED = 3
"""An item that waits for a CPU may take this multiple of its `timeout`. After that, nobody knows
whether its program is right."""

_LEETCODE = re.compile(r"^class Solution\b", re.MULTILINE)
"""The program's form on LeetCode, whose judge imports the standard library."""
MAX_OUTPUT, MAX_ERRORS = 1 << 16, 1 << 12
"""Bytes of a program's output, and of the end of its errors, that the policy reads."""
MAX_FILE = 1 << 20
"""Bytes of each file of a program that the policy runs, its output included."""


class CodeParams(VerifierParams):
    """The limits of a program, and the credit for a part of the tests."""

    timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds (wall clock) for all tests of one item together, without what they "
        "wait for a CPU. A test that comes too late counts as failed: time_limit. An item that "
        "waits so much that it takes three times as long is an `error`, without reward.",
    )
    time_limit: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Seconds of CPU time that all processes of a program may take together in one "
        "test; the test may take twice that and a second by the clock, without what it waits for "
        "a CPU.",
    )
    memory_mb: int = Field(
        512, ge=16, description="Memory that the processes of one test may take together, in MiB."
    )
    credit: Literal["all", "fraction"] = Field(
        "all",
        description="`all`: 1 for passing all tests, else 0; testing ends with the first failure. "
        "`fraction`: the fraction of the tests that are passed.",
    )


class Result(NamedTuple):
    """The result of one test."""

    passed: bool
    detail: str = ""
    waited: float = 0.0
    """Seconds of waiting for a CPU."""


class StarvedError(Exception):
    """The programs of an item got too little CPU time to be judged."""


class CodeVerifier(Verifier[CodeParams]):
    """Runs programs in the sandbox, and compares their results."""

    name = "code"
    description = (
        "Correct when the Python program in the completion (its last block of code, or all of it) "
        "passes the tests in the answer: input and output, asserts, or a test function."
    )
    Params = CodeParams

    def __init__(self, options: SandboxOptions | None = None) -> None:
        self._options = options or SandboxOptions()
        self._sandbox: Sandbox | None = None

    def deadline(self, params: CodeParams) -> float:
        return _STARVED * params.timeout

    def probe(self) -> None:
        try:
            self.notice = probe(self._options)
        except SandboxError as error:
            self.available, self.notice = False, str(error)

    def close(self) -> None:
        """End the sandbox; the next program gets a new one."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def check_reference(self, item: Item, params: CodeParams) -> None:
        """Implements `Verifier.check_reference`. It runs nothing, because a test needs a
        program."""
        read_tests(item.answer, item.columns)

    def score(self, item: Item, params: CodeParams) -> Verdict:
        tests = with_prompt(read_tests(item.answer, item.columns), item.prompt)
        answer = item.after_thoughts
        source, end = find_program(answer, tests)
        if not source.strip():
            return failed(ScoreStatus.NO_ANSWER, "the completion holds no program")
        allowed = max(params.timeout - _MARGIN, params.timeout / 2)
        began = time.monotonic()
        latest = began + (_STARVED - 1) * params.timeout + allowed
        results: list[Result] = []
        for case in tests.cases:
            now, waited = time.monotonic(), sum(result.waited for result in results)
            limits = Limits(
                seconds=params.time_limit,
                wall_seconds=min(2 * params.time_limit + 1, began + allowed + waited - now),
                memory_bytes=params.memory_mb << 20,
                latest_seconds=latest - now,
            )
            try:
                results.append(self._test(source, tests, case, limits))
            except StarvedError as error:
                return broken(str(error))
            if params.credit == "all" and not results[-1].passed:
                break
        end += read_thoughts(item.completion, item.prefill).start or 0
        return _verdict(results, len(tests.cases), end, params)

    def output(self, item: Item, params: CodeParams) -> str:
        limits = Limits(
            seconds=params.time_limit,
            wall_seconds=params.timeout,
            memory_bytes=params.memory_mb << 20,
            file_bytes=MAX_FILE,
            # End before the worker is killed for the item's deadline.
            latest_seconds=_STARVED * params.timeout - min(_MARGIN, params.timeout),
        )
        source = {"kind": "script", "source": item.completion}
        (ending,) = self._run([ProgramTask(source)], limits)
        return printed(ending)

    def _test(self, source: str, tests: Suite, case: Case, limits: Limits) -> Result:
        """Run one test. Raises StarvedError."""
        if limits.wall_seconds <= 0:
            return Result(False, "time_limit")
        if not case.code:
            (ending,) = self._run(
                [ProgramTask({"kind": "script", "source": source}, _bytes(case))], limits
            )
            return _compare(ending, case.stdout)._replace(waited=ending.waited)
        test = {
            "kind": "test",
            "source": case.code,
            "setup": tests.setup,
            "prompt": with_body(tests.prompt),
            "entry_point": tests.entry_point,
        }
        provided = tests.provided or _LEETCODE.search(source) is not None
        program = {
            "kind": "program",
            "source": source,
            "provided": provided,
            "entry_point": tests.entry_point,
        }
        endings = self._run([ProgramTask(test), ProgramTask(program)], limits)
        return _outcome(*endings)._replace(waited=endings[0].waited)

    def _run(self, tasks: list[ProgramTask], limits: Limits) -> list[ProgramEnding]:
        if self._sandbox is None:
            self._sandbox = Sandbox(self._options)
        try:
            endings = self._sandbox.run(tasks, limits)
        except SandboxError:
            # Do not give another program to this sandbox.
            self.close()
            raise
        for ending in endings:
            if ending.limit == "starved":
                raise StarvedError(
                    f"the program got too little CPU time: it waited {ending.waited:.0f} s. This "
                    "machine does too much besides; see docs/sandbox.md"
                )
        return endings


def _bytes(case: Case) -> bytes:
    return case.stdin.encode(errors="surrogatepass")


def _compare(ending: ProgramEnding, wanted: str) -> Result:
    problem = _problem(ending)
    if not problem:
        # Invalid UTF-8 becomes a character that equals no character of a text.
        given = ending.output.decode(errors="surrogateescape")
        expected = wanted.encode(errors="surrogatepass").decode(errors="surrogateescape")
        problem = difference(given, expected)
    return Result(not problem, problem)


def _outcome(test: ProgramEnding, program: ProgramEnding) -> Result:
    reports = [json.loads(line) for line in test.outcome.splitlines()]
    outcome, detail = reports[-1] if reports else ("", "")
    if outcome == "passed":
        return Result(True)
    if outcome == "broken":
        raise BadReferenceError(detail)
    limit = program.limit or test.limit
    if not reports and not limit:
        raise BadReferenceError(f"the test ended before it asked the program: {_problem(test)}")
    problem = limit or (_problem(program) if program.code else "")
    return Result(False, ": ".join(filter(None, [problem, detail])) or "the test did not end")


def _problem(ending: ProgramEnding) -> str:
    """Return why a program counts as failed whatever it has printed. Return an empty string if it
    does not."""
    if ending.limit:
        return ending.limit
    if ending.code == 0:
        return ""
    last = ending.errors.decode(errors="replace").rstrip().rpartition("\n")[2]
    how = f"exit code {ending.code}" if ending.code is None or ending.code > 0 else ""
    how = how or f"killed by signal {-(ending.code or 0)}"
    return f"{last[:300]} ({how})" if last else how


def printed(ending: ProgramEnding) -> str:
    """Return the text for the policy about its program: the output, and how it failed if it did."""
    text = ending.output[:MAX_OUTPUT].decode(errors="replace")
    if not (ending.limit or ending.code):
        return text
    how = ending.limit or f"exit code {ending.code}"
    errors = ending.errors[-MAX_ERRORS:].decode(errors="replace").rstrip()
    return "\n".join(part for part in (text.rstrip("\n"), errors, f"[{how}]") if part)


def _verdict(results: list[Result], count: int, end: int, params: CodeParams) -> Verdict:
    """Return the verdict, with a part for each test that ran. Each test judges the whole program,
    so all parts are at its `end`, and they add up to the reward."""
    passed = sum(result.passed for result in results)
    reward = passed / count if passed == count or params.credit == "fraction" else 0.0
    share = reward / max(passed, 1)
    parts = [(end, share if result.passed else 0.0) for result in results]
    if passed == count:
        detail = f"passes {count} of {count} tests"
        return Verdict(ScoreStatus.CORRECT, 1.0, detail, parts=parts)
    number = next(n for n, result in enumerate(results, 1) if not result.passed)
    detail = f"test {number} of {count}: {results[number - 1].detail}"
    if not reward:
        return Verdict(ScoreStatus.WRONG, 0.0, detail, parts=parts)
    detail = f"passes {passed} of {count} tests; {detail}"
    return Verdict(ScoreStatus.PARTIAL, reward, detail, parts=parts)
