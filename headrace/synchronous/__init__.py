"""The synchronous client. `make client` makes this file (deploy/client_code.py)."""

from headrace.synchronous.client import Client
from headrace.synchronous.runs import Run
from headrace.synchronous.sessions import Group, Session

__all__ = ["Client", "Group", "Run", "Session"]
