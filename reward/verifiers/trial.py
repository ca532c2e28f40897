"""Load a user's file in a process of its own, and run its tests: `python -m reward.verifiers.trial
FILE [OBJECT]`.

A file that hangs or crashes so does no harm to the service. The last line on stdout is a
`VerifierTrial` as JSON. The file prints to stderr.
"""

import contextlib
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from reward.errors import brief
from reward.verifiers.base import RemoteVerifier, Verifier
from reward.verifiers.plain_function import FORMS, is_reward_function
from reward.verifiers.registry import import_file, verifier_of
from services.contracts.verifiers import TestResult

USUAL = ("reward", "reward_fn", "reward_func", "reward_function", "score")
"""Names of functions that say nothing. Such a verifier takes the file's name."""


class VerifierTrial(BaseModel):
    """The verifier and the tests in a user's file."""

    object: str = ""
    """The class or function that is the verifier."""
    name: str = ""
    """The verifier's own name."""
    description: str = ""
    tests: list[TestResult] = []
    problem: str | None = None
    """Why the file cannot be used. None: it can."""


def main() -> int:
    """Print the trial of the file that the arguments name."""
    file, wanted = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    with contextlib.redirect_stdout(sys.stderr):
        trial = tried(file, wanted)
    print(json.dumps(trial.model_dump()), flush=True)
    # A thread that the file has started must not keep the process.
    os._exit(0)


def tried(file: Path, wanted: str) -> VerifierTrial:
    """Load `file`, find its verifier, and run its tests. `wanted`: the verifier's object."""
    try:
        module = import_file(str(file))
        object = wanted or _object_of(module)
        value = getattr(module, object, None)
        if value is None:
            raise LookupError(f"the file has no {object!r}")
        verifier = verifier_of(value, file.stem if object in USUAL else None)
        if isinstance(verifier, Verifier):
            verifier.warm()
    except BaseException as error:
        return VerifierTrial(problem=_where(error, file))
    tests = [
        TestResult(name=name, problem=_outcome(test, file))
        for name, test in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(test)
    ]
    failed = [test.name for test in tests if test.problem is not None]
    return VerifierTrial(
        object=object,
        name=verifier.name,
        description=verifier.description,
        tests=tests,
        problem=f"its tests fail: {', '.join(failed)}" if failed else None,
    )


def _object_of(module: ModuleType) -> str:
    """Return the name of the only verifier in a module. Raise LookupError for none or several."""
    members = {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }
    classes = [name for name, value in members.items() if _is_verifier(value)]
    functions = [name for name, value in members.items() if is_reward_function(value)]
    usual = [name for name in functions if name in USUAL]
    candidates = classes or (usual if len(usual) == 1 else functions)
    if not candidates:
        raise LookupError(
            f"the file has no verifier: a class derives from Verifier, and a function: {FORMS}"
        )
    if len(candidates) > 1:
        raise LookupError(f"the file has several verifiers: name one of {', '.join(candidates)}")
    return candidates[0]


def _is_verifier(value: Any) -> bool:
    is_class = isinstance(value, type) and issubclass(value, Verifier | RemoteVerifier)
    return is_class and not inspect.isabstract(value)


def _outcome(test: Any, file: Path) -> str | None:
    try:
        test()
    except BaseException as error:
        return _where(error, file)
    return None


def _where(error: BaseException, file: Path) -> str:
    """Describe an error, with the line of the user's file."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")[:1000]
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if frame.filename == str(file)]
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {brief(error)}"
    return f"line {frames[-1].lineno} ({frames[-1].line}): {text}" if frames else text


if __name__ == "__main__":
    sys.exit(main())
