"""The `headrace` command: what a user can do over REST, from a terminal.

Talks to the gateway only; `up`, `demo`, `logs` and `chat` work on this machine. Shows one sentence
for an error, never a traceback. Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 no
gateway; 130 interrupted.
"""

from services.cli.main import app

__all__ = ["app"]
