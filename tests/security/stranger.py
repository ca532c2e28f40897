"""Another user of the machine, as a process: what it can connect to, read and list.

`python stranger.py UID < QUESTIONS` answers JSON with JSON, each question with its result.
UID 0: the tests run without root, and the process keeps its user. Only the standard library:
the other user cannot read this checkout, perhaps.
"""

import json
import os
import signal
import socket
import sys

ENDS_AFTER = 60.0
"""Seconds in which a service has to begin its answer."""


def said(address: tuple[str, int] | str, family: int, request: str) -> str:
    """The beginning of the answer to `request`, or the name of the error."""
    try:
        with socket.socket(family) as connection:
            connection.settimeout(ENDS_AFTER)
            connection.connect(address)
            connection.sendall(request.encode())
            return connection.recv(4096).decode(errors="replace")
    except OSError as error:
        return type(error).__name__


def listed(path: str) -> str:
    """Return the contents of the folder or file `path`, or the name of the error."""
    try:
        if os.path.isdir(path):
            return " ".join(os.listdir(path))
        with open(path, "rb") as file:
            return repr(file.read(100))
    except OSError as error:
        return type(error).__name__


def killed(pid: int) -> str:
    """Send SIGTERM. Return the name of the error."""
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        return type(error).__name__
    return ""


def answered(question: list[str]) -> str:
    """["tcp", HOST, PORT, REQUEST], ["unix", PATH, REQUEST] (@ for an abstract name), ["read",
    PATH] or ["kill", PID]."""
    match question:
        case ["tcp", host, port, request]:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return said((host, int(port)), family, request)
        case ["unix", path, request]:
            name = "\0" + path[1:] if path.startswith("@") else path
            return said(name, socket.AF_UNIX, request)
        case ["read", path]:
            return listed(path)
        case ["kill", pid]:
            return killed(int(pid))
    raise ValueError(question)


if __name__ == "__main__":
    questions = json.load(sys.stdin)
    if uid := int(sys.argv[1]):
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    print(json.dumps([answered(question) for question in questions]))
