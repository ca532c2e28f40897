"""A chain that cannot go on holds up no other one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.chains import advance
from services.runtime.tasks import end


@pytest.mark.parametrize(
    "wrong", [FileNotFoundError("segment.arrow"), PermissionError("metrics.jsonl"), ValueError("x")]
)
async def test_a_chain_whose_files_cannot_be_read_stops_no_other_chain(
    wrong: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dataset's file may be gone, or its step's metrics unreadable."""
    later = asyncio.Event()

    async def advanced(_: object, id: str) -> None:
        if id == "chain-1":
            raise wrong
        later.set()

    async def opened() -> list[str]:
        return ["chain-1", "chain-2"]

    monkeypatch.setattr(advance, "advance", advanced)
    deps: Any = SimpleNamespace(store=SimpleNamespace(chains=SimpleNamespace(open=opened)))
    advancing = asyncio.create_task(advance.keep_advancing(deps))
    try:
        async with asyncio.timeout(60):
            await later.wait()
    finally:
        await end([advancing])
