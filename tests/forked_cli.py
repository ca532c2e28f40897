"""`headrace` as a fork of the tests' own process, which has imported it: saves half a second of a
core for each command. Tests that a command starts by itself run it as a program."""

import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NoReturn

# Imported once for all commands.
from headrace.cli import main  # noqa: F401


def headrace(
    arguments: tuple[str, ...], environment: Mapping[str, str], folder: Path, timeout: float = 200
) -> "subprocess.CompletedProcess[str]":
    """Run a command in `folder`; what `subprocess.run` would return."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        pid = os.fork()
        if pid == 0:
            _be_headrace(arguments, environment, folder, output, errors)
        ended = os.pidfd_open(pid)
        try:
            select.select([ended], [], [], timeout)
        finally:
            os.close(ended)
            # It has ended and is not yet collected, or it took too long.
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        output.seek(0)
        errors.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(arguments, code, output.read(), errors.read())


def _be_headrace(
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    folder: Path,
    output: IO[str],
    errors: IO[str],
) -> NoReturn:
    """In the fork: never returns to the tests, whatever happens."""
    code = 1
    try:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdin = os.fdopen(0)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["headrace", *arguments]
        try:
            runpy.run_module("headrace", run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
