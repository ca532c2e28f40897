"""A typo in a request is named with the key that is meant, wherever it stands."""

from typing import Any

import httpx
from fastapi import FastAPI

from services.gateway.chains.chain_submission import ChainSubmission
from services.gateway.submission.run_submission import RunSubmission
from services.http import install

app = FastAPI()
install(app)


@app.post("/run")
async def run(asked: RunSubmission) -> None: ...


@app.post("/chain")
async def chain(asked: ChainSubmission) -> None: ...


async def problems(path: str, body: dict[str, Any]) -> list[dict[str, str]]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 422
    listed: list[dict[str, str]] = answer.json()["problems"]
    return listed


async def test_a_config_key_outside_of_the_config_is_named_with_its_place() -> None:
    misplaced = {"recipe": "grpo", "dataset": "sums", "model": "m", "type": "rl"}
    known = "config, name, notes, pool, priority, recipe, resume_from, tags"
    assert await problems("/run", misplaced) == [
        {"path": "dataset", "message": "unknown key; did you mean 'config.data.dataset'?"},
        {"path": "model", "message": "unknown key; did you mean 'config.model'?"},
        {"path": "type", "message": f"unknown key; known here: {known}"},
    ]
    step = {"name": "a", "rewards": []}
    assert await problems("/chain", {"steps": [step]}) == [
        {"path": "steps.0.rewards", "message": "unknown key; did you mean 'config.rewards'?"}
    ]


async def test_a_typo_in_a_body_is_answered_with_the_key_that_is_meant() -> None:
    assert await problems("/run", {"recipe": "grpo", "confg": {}}) == [
        {"path": "confg", "message": "unknown key; did you mean 'config'?"}
    ]
    step = {"name": "a", "recpe": "grpo"}
    assert await problems("/chain", {"steps": [step], "title": "t"}) == [
        {"path": "steps.0.recpe", "message": "unknown key; did you mean 'recipe'?"},
        {
            "path": "title",
            "message": "unknown key; known here: name, note, pool, priority, steps, tags",
        },
    ]
