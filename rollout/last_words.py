"""What a server's log says about its end, for a person: the last lines, without stack frames.

Pure. A user is told causes; whoever wants the frames opens the log.
"""

import re

LINES = 12
_PREFIX = re.compile(
    r"^(?:\([\w:]+ pid=\d+\) )?(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r" \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
# Frames of a traceback and what stands under them, help texts, and follow-ups that say nothing.
_NOISE = re.compile(
    r"^\s{4,}|^\s*File \"|^Traceback|^\s*[\^~ ]+$|^\s*For further information|resource_tracker"
    # Python's warnings, with the line that raised them, and drawings.
    r"|^\S+:\d+: \w*Warning: |^\s*warnings\.warn\(|^[^\w]*$"
)
_CAUSE = re.compile(r"\b\w*(?:Error|Exception|Killed|Failed)\b|\berror\b")


def telling_lines(log: str, limit: int = LINES) -> list[str]:
    """At most `limit` lines of `log`, in its order: those that name a cause before the last
    lines, and of these the last. Repetitions (vLLM's processes report for each other) once."""
    said: dict[str, bool] = {}
    for raw in log.splitlines():
        prefix = _PREFIX.match(raw)
        line = raw[prefix.end() :] if prefix else raw
        if not line.strip() or _NOISE.search(line):
            continue
        harmless = prefix is not None and prefix[1] in ("DEBUG", "INFO", "WARNING")
        line = line.strip()[:500]
        cause = bool(_CAUSE.search(line)) and not harmless
        said.pop(line, None)
        said[line] = cause
    lines = list(said)
    last = lines[-(limit // 2) :]
    causes = [line for line in lines[: -(limit // 2)] if said[line]]
    return [*causes[-(limit - len(last)) :], *last]


def brief(text: str) -> str:
    """The first and the last line of `text`: what happened, and what was said last of all."""
    first, *rest = text.splitlines() or [""]
    return " ".join([first, *rest[-1:]])
