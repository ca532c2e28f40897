"""The Python client of Headrace. It needs httpx and pydantic, and nothing of the server.

`Client` and `AsyncClient` are the way in. `headrace.operations` describes each operation of the
API as a request for `client.send`; `headrace.models` has what it takes and answers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

MODULES_OF = {
    **dict.fromkeys(("AsyncClient", "AsyncGroup", "AsyncRun", "AsyncSession"), "asynchronous"),
    **dict.fromkeys(("Client", "Group", "Run", "Session"), "synchronous"),
    "Chart": "chart",
}
"""The modules of these names. All others are errors."""


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import what is used first. The command line needs a small part, and all of it takes 0.3 s."""
    if name in ("models", "operations"):
        return import_module(f"headrace.{name}")
    if name in __all__:
        return getattr(import_module(f"headrace.{MODULES_OF.get(name, 'errors')}"), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
