"""The Python client of Headrace. It needs httpx and pydantic, and nothing of the server.

`Client` and `AsyncClient` are the way in. `headrace.operations` describes each operation of the
API as a request for `client.send`; `headrace.models` has what it takes and answers.
"""

from headrace import models, operations
from headrace.asynchronous import AsyncClient, AsyncGroup, AsyncRun, AsyncSession
from headrace.chart import Chart
from headrace.errors import (
    BadAnswer,
    Conflict,
    Forbidden,
    HeadraceError,
    Invalid,
    NotFound,
    NotInstalled,
    Problem,
    RunFailed,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
    WaitTimeout,
)
from headrace.synchronous import Client, Group, Run, Session

__all__ = [
    "AsyncClient",
    "AsyncGroup",
    "AsyncRun",
    "AsyncSession",
    "BadAnswer",
    "Chart",
    "Client",
    "Conflict",
    "Forbidden",
    "Group",
    "HeadraceError",
    "Invalid",
    "NotFound",
    "NotInstalled",
    "Problem",
    "Run",
    "RunFailed",
    "Session",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "WaitTimeout",
    "models",
    "operations",
]
