"""The `headrace` command: what a user can do over REST, from a terminal.

Talks to the gateway only; `up`, `demo`, `logs` and `chat` work on this machine. Shows one sentence
for an error, never a traceback. Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 no
gateway, or one whose Redis is away; 130 interrupted.
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
