"""Scores the corpus with a real reward service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx

from tests.integration.reward.conftest import Service
from tests.security.corpus import Entry

BATCH = 8
HOSTILE = """```python
import os
for _ in range({children}):
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
        break
while True: pass
```"""


async def scored(client: httpx.AsyncClient, entries: Sequence[Entry]) -> dict[str, Any]:
    """The service's results by name, asked for in a few requests at a time."""
    batches = [entries[at : at + BATCH] for at in range(0, len(entries), BATCH)]
    turns = asyncio.Semaphore(4)

    async def ask(batch: Sequence[Entry]) -> list[dict[str, Any]]:
        async with turns:
            items = [entry.item() for entry in batch]
            reply = await client.post("/v1/score", json={"items": items}, timeout=600)
            results: list[dict[str, Any]] = reply.raise_for_status().json()["results"]
            return results

    answers = await asyncio.gather(*map(ask, batches))
    return {result["id"]: result for results in answers for result in results}


def undeserved(entries: Sequence[Entry], results: dict[str, Any]) -> dict[str, str]:
    """The programs that got another verdict than theirs, and which."""
    rewards = {"correct": 1.0, "wrong": 0.0, "error": None}
    wrong = {}
    for entry in entries:
        result = results[entry.name]
        if (result["status"], result["reward"]) != (entry.deserved, rewards[entry.deserved]):
            given = f"{result['status']} for {entry.deserved}: {result['detail']}"
            wrong[entry.name] = given
    return wrong


@contextlib.asynccontextmanager
async def hostile(service: Service, children: int) -> AsyncIterator[None]:
    """Meanwhile, one program after the other that starts as many processes which never end."""
    program = HOSTILE.format(children=children)
    item = Entry("hostile", program, [{"input": "", "output": "1"}], "wrong").item()

    async def send() -> None:
        async with service.client() as client:
            while True:
                await client.post("/v1/score", json={"items": [item]}, timeout=600)

    sending = asyncio.create_task(send()) if children else None
    try:
        yield
    finally:
        if sending:
            sending.cancel()
