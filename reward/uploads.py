"""Adds verifiers while the service runs, if the operator allows it (`verifier_uploads`).

A file is tried in a process of its own. If it loads and its tests pass, it is kept in the data
folder, and the service reloads as on SIGHUP.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from reward.verifiers.added_verifiers import NAME, added, keep, remove
from reward.verifiers.registry import Registry
from reward.verifiers.trial import VerifierTrial
from services.contracts.verifiers import MadeVerifier, NewVerifier
from services.http import Problem
from services.runtime.logs import get_logger

log = get_logger(__name__)

TRIAL_SECONDS = 60.0
MOST_OUTPUT = 1 << 20
"""Bytes of a trial's output that are kept."""
KILLED_SECONDS = 5.0
"""How long the pipes of a killed process may stay open."""
NOT_ALLOWED = (
    "this reward service takes no verifiers over its API. Its operator allows it with "
    "HEADRACE_VERIFIER_UPLOADS=true in the environment or the .env of the service, or names the "
    "file there: HEADRACE_VERIFIERS=/path/file.py:OBJECT"
)


class Uploads:
    """The verifiers in a data folder that were added. Methods raise Problem."""

    def __init__(self, data: Path, is_allowed: bool, registry: Registry) -> None:
        self._data, self._is_allowed = data, is_allowed
        self._fixed = set(registry) - {verifier.name for verifier in added(data)}
        self._turn = asyncio.Lock()

    def versions(self) -> dict[str, list[int]]:
        """Return the versions of each verifier."""
        versions: dict[str, list[int]] = {}
        for verifier in added(self._data) if self._is_allowed else ():
            versions.setdefault(verifier.name, []).append(verifier.version)
        return versions

    async def add(self, new: NewVerifier) -> MadeVerifier:
        """Try a file, and keep it as the next version of its verifier."""
        self._check_allowed()
        async with self._turn:
            trial = await _trial_of(new)
            if trial.problem is not None:
                failed = [(test.name, test.problem) for test in trial.tests if test.problem]
                raise Problem(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    f"{new.file} was not added: {trial.problem}",
                    failed,
                )
            name = new.name or trial.name
            if not NAME.fullmatch(name):
                raise _refused(
                    f"{name!r} is no name for a verifier: give one of lower-case letters, digits, "
                    "- and _"
                )
            if name in self._fixed:
                raise _refused(f"a verifier {name!r} exists already: give this one another name")
            try:
                verifier = await asyncio.to_thread(keep, self._data, name, trial.object, new.source)
            except OSError as error:
                raise Problem(
                    HTTPStatus.FORBIDDEN,
                    f"the reward service cannot write to its data folder {self._data}: "
                    f"{error.strerror}; name the file in HEADRACE_VERIFIERS instead",
                ) from None
        log.info("verifier added", verifier=name, version=verifier.version)
        return MadeVerifier(
            name=name,
            version=verifier.version,
            object=trial.object,
            description=trial.description,
            tests=trial.tests,
        )

    async def remove(self, reference: str) -> None:
        """Remove the verifier NAME, or the version NAME@VERSION."""
        self._check_allowed()
        name, at, version = reference.partition("@")
        async with self._turn:
            if not await asyncio.to_thread(remove, self._data, name, version if at else None):
                raise _unknown(reference)
        log.info("verifier removed", verifier=reference)

    def _check_allowed(self) -> None:
        if not self._is_allowed:
            raise Problem(HTTPStatus.FORBIDDEN, NOT_ALLOWED)


def reload() -> None:
    """Have this process read its settings and verifiers again."""
    os.kill(os.getpid(), signal.SIGHUP)


def _refused(reason: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, reason, [("name", reason)])


def _unknown(reference: str) -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND,
        f"no verifier {reference!r} was added; `headrace verifiers` lists all, with their versions",
    )


class Output(NamedTuple):
    """The last MOST_OUTPUT bytes that a process has printed to stdout and to stderr."""

    code: int | None
    out: bytes
    errors: bytes


async def output_of(command: Sequence[str], seconds: float) -> Output | None:
    """Run a command, and end all processes of its session. Return None if it takes longer."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )

    async def end_of(stream: asyncio.StreamReader | None) -> bytes:
        assert stream is not None
        kept = b""
        while piece := await stream.read(1 << 16):
            kept = (kept + piece)[-MOST_OUTPUT:]
        return kept

    async def read() -> Output:
        out, errors = await asyncio.gather(end_of(process.stdout), end_of(process.stderr))
        return Output(await process.wait(), out, errors)

    # asyncio notices the end of a process only once its pipes are read to their ends.
    reading = asyncio.create_task(read())
    try:
        await asyncio.wait([reading], timeout=seconds)
        return reading.result() if reading.done() else None
    finally:
        # The command may have started processes that outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process in another session may still hold the pipes.
        await asyncio.wait([reading], timeout=KILLED_SECONDS)
        reading.cancel()


async def _trial_of(new: NewVerifier) -> VerifierTrial:
    """Try a file in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="headrace-verifier-") as folder:
        file = Path(folder) / new.file
        file.write_text(new.source, encoding="utf-8")
        module = (sys.executable, "-m", "reward.verifiers.trial")
        output = await output_of([*module, str(file), new.object or ""], TRIAL_SECONDS)
    if output is None:
        late = f"it has not loaded and passed its tests in {TRIAL_SECONDS:g} s"
        return VerifierTrial(problem=late)
    lines = output.out.decode(errors="replace").splitlines()
    try:
        return VerifierTrial.model_validate_json(lines[-1])
    except (IndexError, ValueError):
        last = " ".join(output.errors.decode(errors="replace").strip().splitlines()[-1:])
        return VerifierTrial(problem=f"its process ended with code {output.code}: {last}")
