"""Logs of vLLM servers: the lines that a user needs, and which old files to delete.

A user gets causes without stack frames; the frames are in the file.
"""

import re
from collections.abc import Collection
from pathlib import Path

LINES = 12
OLD_LOGS = 10
"""Logs of workers that have ended: a user can still read why the last ones ended."""
_PREFIX = re.compile(
    r"^(?:\([\w:]+ pid=\d+\) )?(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r" \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
# Frames of a traceback and their code, help texts, and consequences without information.
_NOISE = re.compile(
    r"^\s{4,}|^\s*File \"|^Traceback|^\s*[\^~ ]+$|^\s*For further information|resource_tracker"
    # Python's warnings with their line of code, and drawings.
    r"|^\S+:\d+: \w*Warning: |^\s*warnings\.warn\(|^[^\w]*$"
)
_CAUSE = re.compile(r"\b\w*(?:Error|Exception|Killed|Failed)\b|\berror\b")


def essential_lines(log: str, limit: int = LINES) -> list[str]:
    """At most `limit` lines of `log`, in its order: the last ones, and before them lines that
    name a cause. A repeated line (vLLM's processes report for each other) comes once."""
    causes: dict[str, bool] = {}
    for raw in log.splitlines():
        prefix = _PREFIX.match(raw)
        line = raw[prefix.end() :] if prefix else raw
        if not line.strip() or _NOISE.search(line):
            continue
        harmless = prefix is not None and prefix[1] in ("DEBUG", "INFO", "WARNING")
        line = line.strip()[:500]
        is_cause = bool(_CAUSE.search(line)) and not harmless
        causes.pop(line, None)
        causes[line] = is_cause
    lines = list(causes)
    last = lines[-(limit // 2) :]
    earlier = [line for line in lines[: -(limit // 2)] if causes[line]]
    return [*earlier[-(limit - len(last)) :], *last]


def brief(text: str) -> str:
    """The first and the last line of `text`: what happened, and the last cause."""
    first, *rest = text.splitlines() or [""]
    return " ".join([first, *rest[-1:]])


def tail(path: Path) -> str:
    """The essential lines at the end of a log file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 18)))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(essential_lines(text)) or "(nothing)"


def log_of(folder: Path, worker: str) -> Path:
    """The log file of a worker's vLLM, in the folder of all logs."""
    return folder / f"vllm-{worker}.log"


def delete_old_logs(folder: Path, living: Collection[str]) -> None:
    """Delete the vLLM logs of workers that are not among `living`, except the newest."""
    in_use = {log_of(folder, worker) for worker in living}
    old = [path for path in folder.glob(log_of(folder, "*").name) if path not in in_use]
    for path in sorted(old, key=_modified, reverse=True)[OLD_LOGS:]:
        for name in (path.name, f"{path.name}.1"):
            path.with_name(name).unlink(missing_ok=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another worker deletes it too
        return 0.0
