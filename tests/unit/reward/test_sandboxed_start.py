"""A reward service starts whatever its sandbox answers, and retries a sandbox that hangs."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from reward.verifiers.base import Item
from reward.verifiers.programs import sandboxed
from reward.verifiers.programs.code import CodeParams
from reward.verifiers.programs.sandboxed import SandboxedCodeVerifier


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, {"detail": "this reward service is shutting down"}),
        (200, {"verifiers": []}),
        (200, {"verifiers": [{"name": "code"}]}),
        (200, ["nonsense"]),
        (200, {"verifiers": [1]}),
    ],
)
async def test_a_sandbox_with_a_wrong_first_answer_can_be_used_later(
    monkeypatch: pytest.MonkeyPatch, status: int, body: Any
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json=body)

    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(sandboxed, "client", lambda _: httpx.AsyncClient(transport=transport))
    verifier = SandboxedCodeVerifier(Path("/run/sandbox"))
    await verifier.open()
    await verifier.close()
    assert verifier.available
    assert "does not answer yet" in verifier.notice


SCORED = b'{"results": [{"id": "0", "status": "correct", "reward": 1}]}'
ITEM = Item("code", "", "print(1)", "", {}, {})


async def asked(monkeypatch: pytest.MonkeyPatch, *, healthy: bool) -> list[str]:
    """Return the paths that are requested until an item has its verdict.

    The first request for the item gets no answer before the third request for the sandbox's health.
    With an unhealthy sandbox, it never gets one.
    """
    paths: list[str] = []
    looked_at = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        paths.append(path)
        if path == "/healthz":
            if not healthy:
                raise httpx.ReadTimeout("", request=request)
            if paths.count("/healthz") == 3:
                looked_at.set()
        elif path == "/v1/score" and paths.count(path) == 1:
            await looked_at.wait()
        return httpx.Response(200, stream=httpx.ByteStream(SCORED))

    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(sandboxed, "client", lambda _: httpx.AsyncClient(transport=transport))
    monkeypatch.setattr(sandboxed, "LOOK_SECONDS", 0.01)
    verifier = SandboxedCodeVerifier(Path("/run/sandbox"))
    await verifier.open()
    async with asyncio.timeout(60):
        verdict = await verifier.score(ITEM, CodeParams())
    await verifier.close()
    assert verdict.reward == 1.0
    return paths[1:]


async def test_a_sandbox_that_hangs_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asked(monkeypatch, healthy=False) == ["/v1/score", "/healthz", "/v1/score"]


async def test_a_sandbox_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = await asked(monkeypatch, healthy=True)
    assert paths.count("/v1/score") == 1
