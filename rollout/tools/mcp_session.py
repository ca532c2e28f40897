"""A session with one MCP server, over its streamable HTTP.

The SDK holds whole answers in memory, so the HTTP transport below it aborts answers that are too
large. It refuses compression, which could hide a large answer in a small one, and opens no stream
for messages that the server starts. The SDK follows no redirect to another host.
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

from rollout.tools import NoSession, ToolsAway
from rollout.tools.offer import MAX_TOOLS, Listed
from rollout.tools.results import text_of_result
from services.runtime.tasks import end
from services.runtime.tool_servers import VARIABLE, ToolServer

T = TypeVar("T")

MAX_ANSWER = 1 << 20
"""Bytes of one answer, all its events together."""
CONNECT_SECONDS = 10.0
OPEN_SECONDS = 30.0
"""Seconds for the handshake, and for the list of tools."""
CLOSE_SECONDS = 5.0
OPEN_TRIES = 3
"""Opening may be repeated, since the server has done nothing before a session is open."""
TRY_AGAIN_SECONDS = 1.0
MAX_PROBLEM = 300
"""Characters of a problem in an error message."""
REDIRECTS = (
    "it redirects to another address, which is not followed: name that in "
    f"{VARIABLE}, with its scheme and its last slash"
)
PAGES = 8
"""Pages in a list of tools."""
# The SDK logs each message that it cannot read, with a traceback: a server could fill the disk.
for _chatty in ("mcp", "client"):
    logging.getLogger(_chatty).setLevel(logging.CRITICAL + 1)
_RESULT: TypeAdapter[types.CallToolResult] = TypeAdapter(types.CallToolResult)


class MCPSession:
    """One session. Its connection has its own task, because the SDK cancels the task that opened a
    connection when the connection breaks."""

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        self._transport = _LimitedTransport()
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._connection = asyncio.create_task(self._connect(), name=f"MCP server {server.name}")
        # Each waiting call raises the connection's error, so asyncio must not log it as well.
        self._connection.add_done_callback(lambda task: task.cancelled() or task.exception())

    @classmethod
    async def open(cls, server: ToolServer) -> "MCPSession":
        """Return a session after its handshake. Raises NoSession after OPEN_TRIES."""
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
        """Return the server's tools. Raises ToolsAway."""
        tools: list[Listed] = []
        cursor: str | None = None
        for _ in range(PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            request = self._opened.result().list_tools(params=params)
            page = await self._within(OPEN_SECONDS, request)
            tools += [Listed(t.name, t.description or "", t.input_schema) for t in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(tools) > MAX_TOOLS:
                return tools
        raise ToolsAway(self._problem(f"its list of tools has more than {PAGES} pages"))

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> str:
        """Return the text of a tool's result or error; the policy reads both. Never retried, since
        the server may have executed the call. Raises ToolsAway."""
        result = await self._within(seconds, self._called(tool, arguments))
        return text_of_result(result.content, result.structured_content)

    async def _called(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        params = types.CallToolRequestParams(name=tool, arguments=arguments)
        request = types.CallToolRequest(params=params)
        try:
            # Not `call_tool`, which would check the result by a schema that the server wrote.
            return await self._opened.result().send_request(request, _RESULT)
        except MCPError as error:
            # Any other error means that the server failed; the call was right.
            if error.code != types.INVALID_PARAMS:
                raise
            text = types.TextContent(type="text", text=f"error: {error}")
            return types.CallToolResult(content=[text], is_error=True)

    async def close(self) -> None:
        """End the session on the server, if the server answers in time."""
        self._closing.set()
        self._opened.cancel()
        try:
            await asyncio.wait([self._connection], timeout=CLOSE_SECONDS)
        finally:
            # Also if this call is cancelled, so that no server can keep a connection open.
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
            # The SDK runs several tasks: take the first that failed.
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise ToolsAway(self._problem(_line(error))) from None

    async def _within(self, seconds: float, answer: Coroutine[Any, Any, T]) -> T:
        """Return the result of `answer`. Raises ToolsAway, also if the connection ends first."""
        self._transport.problem = ""
        asked = asyncio.create_task(answer)
        try:
            done, _ = await asyncio.wait(
                {asked, self._connection}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise ToolsAway(self._problem(f"no answer in {seconds:g} s"))
            if asked not in done:
                self._connection.result()
                raise ToolsAway(self._problem("the connection ended"))
            return asked.result()
        except MCPError as error:
            raise ToolsAway(self._problem(_line(error))) from None
        except (ValidationError, RuntimeError) as error:
            raise ToolsAway(self._problem(f"it does not answer as MCP: {_line(error)}")) from None
        finally:
            await end([asked])

    def _problem(self, problem: str) -> str:
        # The SDK does not always say why an answer ended. Its URL may hold a key, and so may the
        # target of a redirect.
        problem = self._transport.problem or problem
        problem = REDIRECTS if problem.startswith("Redirect to ") else problem
        return f"MCP server {self._server.name!r}: {self._server.hidden_in(problem)[:MAX_PROBLEM]}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@functools.cache
def _certificates() -> ssl.SSLContext:
    # Reading the certificates takes longer than a call.
    return httpx2.create_ssl_context(trust_env=False)


class _LimitedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self) -> None:
        super().__init__(verify=_certificates(), trust_env=False)
        self.problem = ""
        """Why an answer was refused."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(405)
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            self.refuse("it compresses an answer that was asked for as it is")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _LimitedBody(response.stream, self.refuse)
        return response

    def refuse(self, problem: str) -> NoReturn:
        """Note the problem and raise ReadError."""
        self.problem = problem
        raise httpx2.ReadError(problem)


class _LimitedBody(httpx2.AsyncByteStream):
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
