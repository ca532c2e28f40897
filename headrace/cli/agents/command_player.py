"""Plays sessions with a command: each in a process group of its own, with a time limit.

A thread waits for each command. The command's process group is killed when the command ends, when
its time is over, and when `headrace agents` stops.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.output import CliError
from headrace.death_signal import die_with

KEPT = 256 * 1024
"""Bytes of each stream that are kept: the last ones."""
NO_REWARD = "it wrote no reward, and posted none for its session"
OTHER_ACCOUNTS = ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
"""Variables with which Anthropic's programs would show another key than the session's."""
LOOK_SECONDS = 0.5
"""Between two looks whether to stop."""


@dataclass(frozen=True)
class Ended:
    """The outcome of one agent's session."""

    exit_code: int | None
    """None: it was killed, or did not start."""
    seconds: float
    output: str
    errors: str
    problem: str
    """Why it earns nothing; '' if it ended by itself with 0."""


class CommandPlayer:
    """Runs a command for each session (see `players.Player`)."""

    def __init__(self, command: list[str], limit: float, reward: str) -> None:
        """`reward`: see `reward_of`. Raises CliError if the program does not exist."""
        if shutil.which(command[0]) is None:
            raise CliError(f"there is no program {command[0]!r}", code=2)
        self._command, self._limit, self._reward = command, limit, reward

    def serving(self) -> AbstractContextManager[None]:
        """Start nothing: each session starts its own command."""
        return nullcontext()

    def play(
        self, group: dict[str, Any], session: dict[str, Any], stop: threading.Event
    ) -> tuple[Ended, dict[str, Any] | None]:
        """Run the command for one session, and return its outcome and reward."""
        with tempfile.TemporaryDirectory(prefix="headrace-agent-") as folder:
            file = Path(folder) / "reward"
            environment = environment_of(os.environ, group, session, file)
            ended = play(self._command, environment, self._limit, stop)
            return ended, reward_of(ended, self._reward, file)


def environment_of(
    inherited: "os._Environ[str] | dict[str, str]",
    group: dict[str, Any],
    session: dict[str, Any],
    reward_file: Path,
) -> dict[str, str]:
    """Return an agent's environment variables. The session's key is the only key among them."""
    names = ("prompt", "answer", "columns", "row", "task")
    plain = {
        name: value
        for name, value in inherited.items()
        if not name.startswith("HEADRACE_") and name not in OTHER_ACCOUNTS
    }
    return plain | {
        "OPENAI_BASE_URL": session["base_url"],
        "OPENAI_API_KEY": session["key"],
        # Anthropic's client adds `/v1` itself. Both of its variables would send two keys.
        "ANTHROPIC_BASE_URL": session["base_url"].removesuffix("/v1"),
        "ANTHROPIC_API_KEY": session["key"],
        "HEADRACE_ROW": json.dumps({name: group[name] for name in names}),
        "HEADRACE_SESSION": session["id"],
        "HEADRACE_REWARD_FILE": str(reward_file),
    }


def play(
    command: Sequence[str], environment: Mapping[str, str], limit: float, stop: threading.Event
) -> Ended:
    """Run `command` for up to `limit` seconds, or until `stop` is set."""
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )
    except OSError as error:
        return Ended(None, 0.0, "", "", f"{command[0]} does not start: {error.strerror}")
    with process:
        written, problem = _watch(process, began + limit, stop)
        # Its number is nobody else's until the command is waited for.
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if not problem and code != 0:
        problem = f"it ended with exit code {code}"
    elif problem == "time":
        problem = f"it was stopped after {limit:g} s"
    output, errors = (bytes(text[-KEPT:]).decode(errors="replace") for text in written)
    return Ended(code if code >= 0 else None, time.monotonic() - began, output, errors, problem)


def _watch(
    process: subprocess.Popen[bytes], deadline: float, stop: threading.Event
) -> tuple[tuple[bytearray, bytearray], str]:
    """Read both output streams until the process has ended. Return the output, and the reason if
    the process has to be stopped."""
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    written = tuple(texts.values())
    end = os.pidfd_open(process.pid)
    poll, problem = select.poll(), ""
    for number in (*texts, end):
        os.set_blocking(number, False)
        poll.register(number, select.POLLIN | select.POLLHUP)
    try:
        ended = False
        while not ended and not problem:
            ready = {number for number, _ in poll.poll(LOOK_SECONDS * 1000)}
            ended = end in ready
            for number in texts if ended else ready & texts.keys():
                if not _read(number, texts[number]) and not ended:
                    poll.unregister(number)
            if stop.is_set():
                problem = "it was interrupted"
            elif time.monotonic() > deadline:
                problem = "time"
    finally:
        os.close(end)
    return (written[0], written[1]), "" if ended else problem


def _read(number: int, text: bytearray) -> bool:
    """Append the available output to `text`. Return False at its end."""
    while True:
        try:
            chunk = os.read(number, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        text += chunk
        if len(text) > 2 * KEPT:
            del text[:-KEPT]


def reward_in(text: str) -> dict[str, Any]:
    """Parse the reward in the last line of `text`: a number, or an object with `reward` or
    `components`. Raises ValueError."""
    lines = text.strip().splitlines()
    if not lines:
        raise ValueError(NO_REWARD)
    try:
        value = json.loads(lines[-1])
        check_sendable(value)
    except (ValueError, RecursionError):
        raise ValueError(f"its last line is no reward: {lines[-1][:200]!r}") from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"reward": value}
    if isinstance(value, dict) and value.keys() & {"reward", "components"}:
        return value
    raise ValueError(f"its last line is no reward: {lines[-1][:200]!r}")


def check_sendable(value: Any) -> None:
    """Raise ValueError or RecursionError for values that no request body may hold, such as NaN or
    half of a surrogate pair. Python's JSON reader accepts both."""
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def reward_of(ended: Ended, source: str, file: Path) -> dict[str, Any] | None:
    """Return the agent's reward from `source`: `last-line`, `file` or `verifier` (None: the run's
    verifiers compute it). A failed agent has no reward, which differs from reward 0."""
    if ended.problem:
        return {"reward": None, "error": ended.problem}
    if source == "verifier":
        return None
    try:
        text = ended.output if source == "last-line" else file.read_text(errors="replace")
        return reward_in(text)
    except FileNotFoundError:
        return {"reward": None, "error": NO_REWARD}
    except (ValueError, OSError) as error:
        return {"reward": None, "error": str(error)}
