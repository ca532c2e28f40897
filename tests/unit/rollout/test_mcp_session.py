"""A server that breaks the protocol ends its session with a reason."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rollout.tools import ToolsAway, mcp_session
from rollout.tools.mcp_session import MCPSession
from services.runtime.tool_servers import ToolServer

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ECHO = b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "%ss3cret"}}' % (
    b"x" * 296
)
GZIP = gzip.compress(b"0" * (4 << 20))


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


EVENT = chunk(b'data: {"jsonrpc": "2.0", "method": "%s"}\n\n' % (b"x" * 5000))


@asynccontextmanager
async def answering(head: bytes, endless: bytes = b"") -> AsyncIterator[ToolServer]:
    """A server that answers everything with `head`, and then with `endless` forever."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while endless:
                writer.write(endless * 100)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield ToolServer("odd", f"http://user:s3cret@127.0.0.1:{port}/mcp?key=s3cret")


@pytest.mark.parametrize(
    ("head", "endless", "said"),
    [
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", b"", "Server returned an error response"),
        (JSON + b"Content-Length: 5\r\n\r\n{oops", b"", "Failed to parse JSON response"),
        (JSON + b"\r\n", b"0" * 1000, "an answer has more than 1,048,576 bytes"),
        (EVENTS, EVENT, "an answer has more than 1,048,576 bytes"),
        (
            JSON + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(GZIP) + GZIP,
            b"",
            "it compresses an answer",
        ),
        (
            b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.2:1/s3cret/\r\nContent-Length: 0\r\n\r\n",
            b"",
            "it redirects to another address, which is not followed: name that in HEADRACE_MCP",
        ),
        (JSON + b"Content-Length: %d\r\n\r\n" % len(ECHO) + ECHO, b"", "xxx"),
        (b"", b"", "disconnected"),
    ],
    ids=["500", "garbage", "endless", "events", "gzip", "redirect", "echo", "closed"],
)
async def test_a_server_with_an_invalid_answer_counts_as_unreachable(
    monkeypatch: pytest.MonkeyPatch, head: bytes, endless: bytes, said: str
) -> None:
    monkeypatch.setattr(mcp_session, "OPEN_TRIES", 1)
    async with answering(head, endless) as server:
        with pytest.raises(ToolsAway) as error:
            await MCPSession.open(server)

    assert str(error.value).startswith("MCP server 'odd': ")
    assert said in str(error.value)
    assert "s3cr" not in str(error.value)
    assert not [one for one in asyncio.all_tasks() if "MCP" in one.get_name()]


async def test_opening_a_session_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    async with answering(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n") as server:
        monkeypatch.setattr(mcp_session, "TRY_AGAIN_SECONDS", 0.0)
        made = MCPSession._connect

        async def counted(self: MCPSession) -> None:
            nonlocal tried
            tried += 1
            await made(self)

        monkeypatch.setattr(MCPSession, "_connect", counted)
        with pytest.raises(ToolsAway):
            await MCPSession.open(server)
    assert tried == mcp_session.OPEN_TRIES
