"""Read the state of a vLLM server, real or scripted."""

from pathlib import Path

import httpx


async def live_version(socket: Path) -> str:
    """The version tag that the server puts on tokens."""
    return str((await _asked(socket, "/weight_info"))["weight_version"])


async def is_paused(socket: Path) -> bool:
    """Whether generation is paused."""
    return bool((await _asked(socket, "/is_paused"))["is_paused"])


async def is_sleeping(socket: Path) -> bool:
    """Whether the server is asleep, or paused."""
    return bool((await _asked(socket, "/is_sleeping"))["is_sleeping"])


async def _asked(socket: Path, path: str) -> dict[str, object]:
    transport = httpx.AsyncHTTPTransport(verify=False, uds=str(socket))
    async with httpx.AsyncClient(base_url="http://vllm", transport=transport, timeout=30) as http:
        answer: dict[str, object] = (await http.get(path)).raise_for_status().json()
        return answer
