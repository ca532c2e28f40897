"""The `headrace` command.

A module for each command or family of commands; `main` lists them. `runs` has what is done with
runs, `models` what is done with what they trained, `agents` what plays sessions, and `host` what
works on this machine; the rest asks the gateway over REST. A module must not import at its top what
takes long (see `options`), and only `bench` imports this package.

Errors are one sentence, never a traceback. Exit codes: 0 done; 1 refused or failed; 2 wrong usage;
3 no gateway, or one whose Redis is away; 130 interrupted.
"""

import sys


def app() -> None:
    """Entry point of `headrace`."""
    try:
        # Imported here: Ctrl-C during the half second that it takes is no reason for a traceback.
        from services.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


__all__ = ["app"]
