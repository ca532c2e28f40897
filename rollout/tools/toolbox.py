"""The tools of one run, and of one episode.

The list of tools is requested once, when the run's first group needs it, so that all prompts of a
worker describe the same tools. An episode opens a session with a server at its first call.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from rollout.rewards.client import RewardClient, RewardUnavailable
from rollout.tools import NoSession, ToolsAway
from rollout.tools.offer import Listed, Offer, ToolRunner, offer
from services.contracts.config.episodes import Tools
from services.contracts.programs import MAX_PROGRAM
from services.contracts.strict_json import decode
from services.runtime.tool_servers import ToolServer, unknown_server

PYTHON_SECONDS = 600.0
"""Seconds that the reward service runs a program at most."""


class RunTools:
    def __init__(
        self, config: Tools, servers: Mapping[str, ToolServer], rewards: RewardClient
    ) -> None:
        self.config = config
        self.rewards = rewards
        self._servers = servers
        self._listing: asyncio.Task[Offer] | None = None

    async def offer(self) -> Offer:
        """Return all tools. Raises ToolsAway if a server does not list its tools; the next call
        tries again."""
        listing = self._listing
        if listing is None or (listing.done() and (listing.cancelled() or listing.exception())):
            listing = self._listing = asyncio.create_task(self._list(), name="list tools")
        # Other groups wait for the same list.
        return await asyncio.shield(listing)

    def server(self, name: str) -> ToolServer:
        """Return the MCP server of this name. Raises NoSession if it cannot be used here."""
        server = self._servers.get(name)
        if server is None or server.problem:
            problem = server.problem if server else ""
            raise NoSession(unknown_server(name, self._servers, problem))
        return server

    async def _list(self) -> Offer:
        listed = [(name, await self._tools_of(name)) for name in self.config.servers]
        return offer(listed, self.config.python)

    async def _tools_of(self, name: str) -> list[Listed]:
        # Importing the SDK takes a second.
        from rollout.tools.mcp_session import MCPSession

        session = await MCPSession.open(self.server(name))
        try:
            return await session.list_tools()
        finally:
            await session.close()


class Toolbox:
    """The tools of one episode, until the block ends. No other episode uses its sessions."""

    def __init__(self, run: RunTools, offered: Offer) -> None:
        self._run = run
        self._offered = offered
        self._sessions: dict[str, Any] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Toolbox":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def call(self, name: str, arguments: str) -> str:
        """Return the text of a call's result. A mistake of the policy is a result as well. Raises
        ToolsAway."""
        runner = self._offered.runners.get(name)
        if runner is None:
            there = ", ".join(self._offered.runners)
            return f"error: there is no tool {name[:80]!r}; there is {there}"
        try:
            # Strict, because Python's own parser accepts NaN and unpaired surrogates, which neither
            # the sandbox nor a server can read.
            decoded = decode((arguments or "{}").encode())
        except (ValueError, RecursionError) as error:
            return f"error: the arguments are not JSON: {str(error)[:200]}"
        if not isinstance(decoded, dict):
            return "error: the arguments are not a JSON object"
        return await self._called(runner, decoded)

    async def _called(self, runner: ToolRunner, arguments: dict[str, Any]) -> str:
        seconds = self._run.config.call_seconds
        if runner.server:
            session = await self._session(runner.server)
            text: str = await session.call(runner.tool, arguments, seconds)
            return text
        code = arguments.get("code")
        if not isinstance(code, str):
            return "error: python needs its program as text in `code`"
        if len(code) > MAX_PROGRAM:
            return f"error: a program may have {MAX_PROGRAM:,} characters"
        try:
            return await self._run.rewards.python(code, min(seconds, PYTHON_SECONDS))
        except RewardUnavailable as error:
            raise NoSession(f"python: {error}") from error
        except ValueError as error:
            raise ToolsAway(f"python: {error}") from error

    async def _session(self, server: str) -> Any:
        from rollout.tools.mcp_session import MCPSession

        if server not in self._sessions:
            session = await MCPSession.open(self._run.server(server))
            self._stack.push_async_callback(session.close)
            self._sessions[server] = session
        return self._sessions[server]
