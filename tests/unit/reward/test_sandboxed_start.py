"""A reward service starts, whatever its sandbox answers then."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from reward.verifiers import sandboxed
from reward.verifiers.sandboxed import SandboxedCodeVerifier


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
async def test_a_sandbox_that_answers_otherwise_may_answer_rightly_later(
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
