"""A session with one MCP server, over its streamable HTTP.

The SDK's transport holds answers in memory as a whole, so the HTTP transport below it ends those
that are too large. It asks for no compression, which could hide a large answer in a small one, and
opens no stream for what the server says by itself. The SDK follows no redirect to another host.
"""

import asyncio
import functools
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import httpx2
from mcp import ClientSession, MCPError, types
from mcp.client.streamable_http import streamable_http_client
from pydantic import TypeAdapter, ValidationError

from rollout.tools.errors import NoSession, ToolsAway
from rollout.tools.offer import MAX_TOOLS, Listed
from rollout.tools.results import text_of_result
from services.runtime.tasks import end
from services.runtime.tool_servers import VARIABLE, ToolServer

T = TypeVar("T")

MAX_ANSWER = 1 << 20
"""Bytes of one answer, all of its events together."""
CONNECT_SECONDS = 10.0
OPEN_SECONDS = 30.0
"""For the handshake, and for the list of tools."""
CLOSE_SECONDS = 5.0
OPEN_TRIES = 3
"""Nothing has happened on the server before a session is open, so that this may be repeated."""
TRY_AGAIN_SECONDS = 1.0
MAX_PROBLEM = 300
"""Characters."""
REDIRECTS = (
    "it redirects to another address, which is not followed: name that in "
    f"{VARIABLE}, with its scheme and its last slash"
)
PAGES = 8
"""Of a list of tools."""
# The SDK logs each message that it cannot read, with a traceback: a server could fill the disk.
for _chatty in ("mcp", "client"):
    logging.getLogger(_chatty).setLevel(logging.CRITICAL + 1)
_RESULT: TypeAdapter[types.CallToolResult] = TypeAdapter(types.CallToolResult)


class Session:
    """One session. Its connection lives in a task of its own: the SDK cancels the task that has
    entered it when the connection breaks."""

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        self._transport = _Limited()
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._connection = asyncio.create_task(self._connect(), name=f"MCP server {server.name}")
        # Whoever calls is told why it ended; where nobody does, nobody needs to know.
        self._connection.add_done_callback(lambda task: task.cancelled() or task.exception())

    @classmethod
    async def open(cls, server: ToolServer) -> "Session":
        """A session that has shaken hands. Raises NoSession after OPEN_TRIES."""
        for tried in range(1, OPEN_TRIES + 1):
            session = cls(server)
            try:
                await session._within(OPEN_SECONDS, session._shaken_hands())
                return session
            except ToolsAway as error:
                await session.close()
                if tried == OPEN_TRIES:
                    raise NoSession(str(error)) from None
                await asyncio.sleep(tried * TRY_AGAIN_SECONDS)
            except BaseException:
                await session.close()
                raise
        raise AssertionError("a last try returns or raises")

    async def list_tools(self) -> list[Listed]:
        """The server's tools. Raises ToolsAway."""
        found: list[Listed] = []
        cursor: str | None = None
        for _ in range(PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            request = self._opened.result().list_tools(params=params)
            page = await self._within(OPEN_SECONDS, request)
            found += [Listed(t.name, t.description or "", t.input_schema) for t in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(found) > MAX_TOOLS:
                return found
        raise ToolsAway(self._said(f"its list of tools has more than {PAGES} pages"))

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> str:
        """The text of a tool's result, or of its error, which tells the policy something as well.
        Never repeated: nobody knows whether the server has done it. Raises ToolsAway."""
        result = await self._within(seconds, self._called(tool, arguments))
        return text_of_result(result.content, result.structured_content)

    async def _called(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        params = types.CallToolRequestParams(name=tool, arguments=arguments)
        request = types.CallToolRequest(params=params)
        try:
            # Not `call_tool`, which would check results by a schema that the server has written.
            return await self._opened.result().send_request(request, _RESULT)
        except MCPError as error:
            # Any other error says that the server failed, not that the call was wrong.
            if error.code != types.INVALID_PARAMS:
                raise
            said = types.TextContent(type="text", text=f"error: {error}")
            return types.CallToolResult(content=[said], is_error=True)

    async def close(self) -> None:
        """End the session on the server, if that answers in time."""
        self._closing.set()
        self._opened.cancel()
        try:
            await asyncio.wait([self._connection], timeout=CLOSE_SECONDS)
        finally:
            # Also where this is cancelled, so that no server can keep a connection open.
            self._connection.cancel()
        await end([self._connection])

    async def _shaken_hands(self) -> None:
        await asyncio.shield(self._opened)

    async def _connect(self) -> None:
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        try:
            async with (
                httpx2.AsyncClient(transport=self._transport, timeout=timeout) as http,
                streamable_http_client(self._server.url, http_client=http) as streams,
                ClientSession(*streams) as session,
            ):
                await session.initialize()
                if not self._opened.done():
                    self._opened.set_result(session)
                await self._closing.wait()
        except Exception as error:
            # Of several tasks of the SDK the first one that failed.
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise ToolsAway(self._said(_line(error))) from None

    async def _within(self, seconds: float, answer: Coroutine[Any, Any, T]) -> T:
        """What `answer` returns. Raises ToolsAway, also if the connection ends first."""
        self._transport.problem = ""
        asked = asyncio.create_task(answer)
        try:
            done, _ = await asyncio.wait(
                {asked, self._connection}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise ToolsAway(self._said(f"no answer in {seconds:g} s"))
            if asked not in done:
                self._connection.result()
                raise ToolsAway(self._said("the connection ended"))
            return asked.result()
        except MCPError as error:
            raise ToolsAway(self._said(_line(error))) from None
        except (ValidationError, RuntimeError) as error:
            raise ToolsAway(self._said(f"it does not answer as MCP: {_line(error)}")) from None
        finally:
            await end([asked])

    def _said(self, problem: str) -> str:
        # The SDK does not always pass on why an answer ended. The URL may hold a key, and where a
        # server redirects to as well.
        problem = self._transport.problem or problem
        problem = REDIRECTS if problem.startswith("Redirect to ") else problem
        return f"MCP server {self._server.name!r}: {self._server.hidden_in(problem)[:MAX_PROBLEM]}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@functools.cache
def _certificates() -> ssl.SSLContext:
    # Reading them takes longer than a call.
    return httpx2.create_ssl_context(trust_env=False)


class _Limited(httpx2.AsyncHTTPTransport):
    def __init__(self) -> None:
        super().__init__(verify=_certificates(), trust_env=False)
        self.problem = ""
        """Why an answer was not read."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(405)
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            self.refuse("it compresses an answer that was asked for as it is")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Body(response.stream, self.refuse)
        return response

    def refuse(self, problem: str) -> NoReturn:
        """Raises ReadError."""
        self.problem = problem
        raise httpx2.ReadError(problem)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, refuse: Callable[[str], NoReturn]) -> None:
        self._stream, self._refuse = stream, refuse

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_ANSWER:
                self._refuse(f"an answer has more than {MAX_ANSWER:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
