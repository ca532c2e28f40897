"""An MCP server with small tools, as a process of its own: `python -m tests.mcp_server` prints its
URL when it listens."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("sums")


@server.tool()
async def add(a: int, b: int, seconds: float = 0) -> int:
    """Adds two numbers, after some seconds."""
    await asyncio.sleep(seconds)
    return a + b


@server.tool()
def refuse(why: str) -> str:
    """Fails."""
    raise ToolError(f"not today: {why}")


@server.tool()
def endless() -> str:
    """Answers more than anybody reads."""
    return "x" * (2 << 20)


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The URL of a server that runs as long as the block."""
    command = [sys.executable, "-m", "tests.mcp_server"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def main() -> None:
    """Serve until killed."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
