"""What a vLLM server says of itself, real or scripted: for tests alone."""

import httpx


async def live_version(url: str) -> str:
    """The version tag that the server puts on tokens."""
    return str((await _asked(url, "/weight_info"))["weight_version"])


async def is_paused(url: str) -> bool:
    """Whether generation is paused."""
    return bool((await _asked(url, "/is_paused"))["is_paused"])


async def _asked(url: str, path: str) -> dict[str, object]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        answer: dict[str, object] = (await http.get(path)).raise_for_status().json()
        return answer
