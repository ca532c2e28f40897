"""Reads logs of vLLM servers: picks the lines that a user needs, and deletes old files.

A user sees causes without stack frames; the frames stay in the file.
"""

import logging
import re
from collections.abc import Collection
from pathlib import Path

from services.runtime.secrets import masked

LINES = 12
OLD_LOGS = 10
"""Logs of ended workers to keep, so that a user can still read why they ended."""
_PREFIX = re.compile(
    r"^(?:\((?P<process>[\w:]+) pid=\d+\) ?)?(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r" \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
# Frames of a traceback and their code, help texts, and consequences without information.
_NOISE = re.compile(
    r"^\s{4,}|^\s*File \"|^Traceback|^\s*[\^~ ]+$|^\s*For further information|resource_tracker"
    # Warnings of torch, and extensions for other machines.
    r"|^W\d{4} \d\d:\d\d:|^Failed to load \S+\.so: "
    # Warnings of Python with their line of code, and drawings.
    r"|^\S+:\d+: \w*Warning: |^\s*warnings\.warn\(|^[^\w]*$"
)
COMPUTING = ("EngineCore", "Worker")
"""Prefixes of the names of vLLM's processes that compute. Other processes pass requests on."""
LONGEST = 500
_EXCEPTION = re.compile(
    r"^(?:(?:\w+\.)*[A-Z]\w*(?:Error|Exception)|(?:\w+\.)+[A-Z]\w*(?:Failed|Unsupported|Timeout))"
    r"(?:: ?(?P<message>.*))?$"
)
_CONSEQUENCE = re.compile(
    r"EngineDeadError|CancelledError|BrokenPipeError|ConnectionResetError|EOFError"
    r"|[Ss]ee (?:the )?(?:root cause|stack trace)|root cause above|stack trace above"
)
_USAGE = re.compile(
    r"^\S+: error: |^Fatal Python error: |^Segmentation fault|^Illegal instruction|^Bus error"
    # The text that C++ writes before it aborts a process.
    r"|^terminate called after |^(?:free|malloc)\(\): |^double free "
)
_ROUTINE = re.compile(
    r"Route: /\S+, Methods: |INFO +Available routes"
    # At each update of the weights.
    r"|setting pause state to |RotaryEmbedding: Failed to load weights"
)
_CAUSE = re.compile(r"\b\w*(?:Error|Exception|Killed|Failed)\b|\berror\b")


def essential_lines(log: str, limit: int = LINES) -> list[str]:
    """Return at most `limit` lines of `log`, in order: the last lines, and before them lines that
    name a cause. A repeated line comes once (vLLM's processes report for each other)."""
    causes: dict[str, bool] = {}
    for raw in log.splitlines():
        prefix = _PREFIX.match(raw)
        line = raw[prefix.end() :] if prefix else raw
        if not line.strip() or _NOISE.search(line):
            continue
        harmless = prefix is not None and prefix["level"] in ("DEBUG", "INFO", "WARNING")
        line = shown(line)
        is_cause = bool(_CAUSE.search(line)) and not harmless
        causes.pop(line, None)
        causes[line] = is_cause
    lines = list(causes)
    last = lines[-(limit // 2) :]
    earlier = [line for line in lines[: -(limit // 2)] if causes[line]]
    return [*earlier[-(limit - len(last)) :], *last]


def root_cause(log: str) -> str:
    """Return the exception that ended vLLM: the last one of a process that computes, or else of any
    process. Exceptions that only report another process's end do not count. Empty if the log has no
    exception."""
    causes = {True: "", False: ""}
    code, waits, place = "", False, False
    for raw in log.splitlines():
        prefix = _PREFIX.match(raw)
        line = raw[prefix.end() :] if prefix else raw
        process = (prefix["process"] or "") if prefix else ""
        computes = process.startswith(COMPUTING)
        if waits and line.startswith("  "):
            # A validation error has several parts, each with its message below its name, and the
            # message of an abort is below it without the process.
            causes[place] += f" {line.strip()}"
            waits = line.strip().isidentifier()
        elif (exception := _EXCEPTION.match(line)) and not _CONSEQUENCE.search(line):
            waits, place = "validation error" in line, computes
            causes[computes] = line if exception["message"] else f"{line.strip(': ')} at {code}"
        elif _USAGE.match(line):
            waits, place = line.startswith("terminate"), computes
            causes[computes] = line
        else:
            waits = False
        code = line.strip() if line.startswith("    ") else code
    return shown(causes[True] or causes[False])


def is_routine(line: str) -> bool:
    """Whether a line tells nobody anything: routes at a start, and the pauses of each update."""
    return _ROUTINE.search(line) is not None


def leveled(line: str, before: int) -> tuple[int, str]:
    """Return a line's level, as in `logging`, and the line without level and time. A line without a
    level, such as a frame of a traceback, has the level of the line `before`."""
    prefix = _PREFIX.match(line)
    if prefix is None or not prefix.end():
        return before, line
    rest = line[prefix.end() :]
    process = f"{prefix['process']}: " if prefix["process"] else ""
    level = logging.getLevelNamesMapping()[prefix["level"]] if prefix["level"] else before
    return level, process + rest


def shown(line: str) -> str:
    """Return a line of a log for a user: limited in length, and with secrets masked."""
    return masked(line.strip()[:LONGEST])


def explained(problem: str, path: Path, ended: bool) -> str:
    """Return `problem` of the vLLM that writes to the log `path`. The first line has its cause; the
    essential lines of the log's end follow. `ended`: whether the last line counts as a cause."""
    text = _end(path)
    lines = essential_lines(text) or ["(nothing)"]
    cause = root_cause(text) or (lines[-1] if ended else "")
    first = f"{problem}: {cause}" if cause else problem
    return "\n".join([f"{first}. The last lines of its log ({path}):", *lines])


def brief(text: str) -> str:
    """Return the first line of `text`, which has the cause, with the log's path."""
    first = text.partition("\n")[0]
    return first.replace("The last lines of its log", "Its log").rstrip(":")


def _end(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 18)))
            return file.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"


def log_of(folder: Path, worker: str) -> Path:
    return folder / f"vllm-{worker}.log"


def delete_old_logs(folder: Path, living: Collection[str]) -> None:
    """Delete the vLLM logs of workers that are not `living`, except the newest."""
    in_use = {log_of(folder, worker) for worker in living}
    old = [path for path in folder.glob(log_of(folder, "*").name) if path not in in_use]
    for path in sorted(old, key=_modified, reverse=True)[OLD_LOGS:]:
        for name in (path.name, f"{path.name}.1"):
            path.with_name(name).unlink(missing_ok=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # Another worker deletes it too.
        return 0.0
