"""Tests whether programs can be isolated on this machine."""

import json
import os
import socket
import tempfile

from reward.sandbox.limits import Limits
from reward.sandbox.running_program import SandboxError
from reward.sandbox.sandbox_host import ProgramTask, Sandbox, SandboxOptions

_WAY_OUT = (
    "It takes Linux 5.14 or later where this user may create user namespaces; docs/sandbox.md has "
    "what to set, on a host and in a container. Or do without isolation, which lets programs read "
    "this user's files and harm its processes: --code-without-isolation"
)
_PROGRAM = """
import json, os, socket
host = json.loads(input())
def works(what):
    try:
        what()
    except OSError:
        return False
    return True
found = {
    "other files can be read": works(lambda: open(host["file"])),
    "other processes can be signalled": works(lambda: os.kill(host["process"], 0)),
    "the network can be reached": works(
        lambda: socket.create_connection(("127.0.0.1", host["port"]), 1)
    ),
    "files can be written outside /tmp": works(lambda: open("/file", "w")),
    "no file can be written in /tmp": not works(lambda: open("/tmp/file", "w")),
    "no process can be started": not works(lambda: os.fork() or os._exit(0)),
}
print(json.dumps([what for what, is_so in found.items() if is_so]))
"""


def probe(options: SandboxOptions) -> str:
    """Describe the layers between programs and this machine. Raises SandboxError, with the way out,
    if they are not those of `options`."""
    try:
        return _probe(options)
    except SandboxError as error:
        raise SandboxError(f"programs cannot be isolated here: {error}. {_WAY_OUT}") from None


def _probe(options: SandboxOptions) -> str:
    sandbox = Sandbox(options)
    try:
        with (
            tempfile.NamedTemporaryFile() as file,
            socket.create_server(("127.0.0.1", 0)) as server,
        ):
            os.chmod(file.name, 0o644)
            host = {"file": file.name, "process": os.getpid(), "port": server.getsockname()[1]}
            # Without isolation the attempts would succeed, and leave files behind.
            source = _PROGRAM if options.isolated else "print([])"
            (ending,) = sandbox.run(
                [ProgramTask({"kind": "script", "source": source}, json.dumps(host).encode())],
                Limits(seconds=20, wall_seconds=60, memory_bytes=256 << 20),
            )
    finally:
        sandbox.close()
    if ending.code != 0:
        last = ending.errors.decode(errors="replace").rstrip().rpartition("\n")[2]
        raise SandboxError(f"a first program failed: {ending.limit or last or ending.code}")
    breaches = json.loads(ending.output)
    if breaches:
        raise SandboxError("; ".join(breaches))
    return sandbox.layers
