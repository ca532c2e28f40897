"""Runs `grade(sample, item)` of a Python grader in the sandbox of the verifier `code`.

What the program prints goes to its errors. Its result goes to a descriptor that was the program's
output before. A program that runs code of the answer, as with `eval`, lets the answer write there.
"""

import json
import math
from typing import Any

from reward.sandbox.limits import Limits
from reward.sandbox.running_program import ProgramEnding, SandboxError
from reward.sandbox.sandbox_host import ProgramTask, Sandbox, SandboxOptions
from reward.verifiers.graders.outcome import GraderError

_FILE_BYTES = 1 << 20
"""The largest file of a program, and the most that it may print."""
_PROGRAM = """
import json, linecache, numbers, os, sys, traceback
task = json.load(sys.stdin)
answer = os.dup(1)
os.dup2(2, 1)
source, name = task["source"].removeprefix("\\ufeff"), "grader.py"
linecache.cache[name] = (len(source), None, source.splitlines(True), name)
try:
    names = {"__name__": "grader", "__file__": name}
    exec(compile(source, name, "exec"), names)
    value = names["grade"](task["sample"], task["item"])
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        said = ["type", type(value).__name__, repr(value)[:100]]
    else:
        said = ["value", float(value), ""]
except BaseException as error:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
    where = f"line {frames[-1].lineno} ({frames[-1].line}): " if frames else ""
    said = ["raised", where + f"{type(error).__name__}: {error}"[:400].rstrip(": "), ""]
os.write(answer, json.dumps(said).encode(errors="replace"))
"""


class PythonGraderSandbox:
    """The sandbox of the Python graders of one worker."""

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._sandbox: Sandbox | None = None

    def grade(self, source: str, names: dict[str, Any], limits: Limits) -> float:
        """Return what `grade` returns. Raises GraderError."""
        sample = {"output_json": None, **names["sample"]}
        task = {"source": source, "sample": sample, "item": names["item"]}
        program = ProgramTask({"kind": "script", "source": _PROGRAM}, json.dumps(task).encode())
        if self._sandbox is None:
            self._sandbox = Sandbox(self._options)
        try:
            (ending,) = self._sandbox.run([program], limits)
        except SandboxError:
            # Do not give another program to this sandbox.
            self._sandbox.close()
            self._sandbox = None
            raise
        return result(ending)


def limits_of(time_limit: float, timeout: float, memory_mb: int) -> Limits:
    """Return the limits of one Python grader."""
    return Limits(
        seconds=time_limit,
        wall_seconds=min(2 * time_limit + 1, timeout),
        memory_bytes=memory_mb << 20,
        file_bytes=_FILE_BYTES,
        latest_seconds=2 * timeout,
    )


def result(ending: ProgramEnding) -> float:
    """Return the score that a program reports. Raises GraderError."""
    if ending.limit:
        late = ending.limit == "time_limit"
        raise GraderError(
            "python_grader_server_error", f"hit its {ending.limit}", ending.limit, is_late=late
        )
    try:
        kind, value, quoted = json.loads(ending.output)
    except (ValueError, TypeError):
        last = ending.errors.decode(errors="replace").rstrip().rpartition("\n")[2][:300]
        raise _runtime(
            f"ended before grade returned (exit code {ending.code}{': ' * bool(last)}{last})"
        ) from None
    if kind == "type":
        raise _runtime(f"grade returned {quoted}, a {value}: return a number")
    if kind != "value" or not isinstance(value, float):
        raise _runtime(str(value))
    if not math.isfinite(value):
        raise _runtime(f"grade returned {value}: return a finite number")
    return value


def _runtime(message: str) -> GraderError:
    # An exception's text may have half of a surrogate pair, which no message can carry.
    text = message[:500].encode(errors="replace").decode()
    return GraderError("python_grader_runtime_error", text)
