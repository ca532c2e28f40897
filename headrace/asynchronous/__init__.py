"""The asynchronous client. `make client` makes the synchronous one from this package."""

from headrace.asynchronous.client import AsyncClient
from headrace.asynchronous.runs import AsyncRun
from headrace.asynchronous.sessions import AsyncGroup, AsyncSession

__all__ = ["AsyncClient", "AsyncGroup", "AsyncRun", "AsyncSession"]
