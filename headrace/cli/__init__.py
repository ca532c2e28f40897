"""The `headrace` command.

A module for each command or family of commands; `main` lists them. `runs` has what is done with
runs, `models` what is done with what they trained, and `agents` what plays sessions. They ask the
gateway over REST, and import nothing of the server. `services.cli` adds the commands that work on
the machine of an installation. A module must not import at its top what takes long (see `options`).

Errors are one sentence, never a traceback. Exit codes: 0 done; 1 refused or failed; 2 wrong usage;
3 no gateway, or one whose Redis is away; 130 interrupted.
"""

import sys


def app() -> None:
    """Entry point of `headrace`."""
    # Else httpx imports its own command line and pygments, which takes 40 ms of CPU time.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    try:
        # Imported here: Ctrl-C during the half second that it takes is no reason for a traceback.
        from headrace.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


__all__ = ["app"]
