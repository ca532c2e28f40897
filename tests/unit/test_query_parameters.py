"""No route ignores a part of its query."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from reward.app import create_app as create_reward
from reward.metrics import Metrics
from reward.remote_pool import Calls
from reward.scoring import Service
from reward.teachers import Teachers
from reward.workers.pool import Pool
from reward.workers.worker_processes import WorkerOptions
from services.gateway.app import create_app
from services.gateway.authentication import Keyring
from services.gateway.settings import GatewaySettings
from services.store import Store

KEY = "hr-key"


def gateway() -> FastAPI:
    app = create_app(GatewaySettings(), KEY)
    # A refused request needs no Redis.
    store = Store.from_url("redis://127.0.0.1:1/0")
    app.state.deps = SimpleNamespace(keyring=Keyring(KEY, store))
    return app


def reward() -> FastAPI:
    metrics = Metrics()
    pool = Pool(workers=1, spare=0, capacity=1, options=WorkerOptions(1 << 30), metrics=metrics)
    calls = Calls([], at_once=1, capacity=1, metrics=metrics)
    return create_reward(Service({}, pool, calls, Teachers({}, at_once=1), metrics), 1 << 20)


async def answer(app: FastAPI, method: str, path: str, body: Any = None) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        return await http.request(method, path, json=body, headers=headers)


@pytest.mark.parametrize(
    ("request_line", "body", "message"),
    [
        (
            "POST /v1/runs?dryrun=true",
            {"recipe": "grpo"},
            "query.dryrun: unknown query parameter 'dryrun' (did you mean 'dry_run'?); "
            "known here: dry_run",
        ),
        (
            "GET /v1/runs?stat=failed",
            None,
            "query.stat: unknown query parameter 'stat' (did you mean 'state'?); "
            "known here: cursor, dataset, limit, model, name, pool, q, recipe, state, tag",
        ),
        (
            "GET /v1/runs/x/samples?limt=1&step=2",
            None,
            "query.limt: unknown query parameter 'limt' (did you mean 'limit'?); "
            "known here: cursor, limit, step",
        ),
        ("GET /v1/runs?limit=1&limit=2", None, "query.limit: is given 2 times and takes one value"),
        (
            "POST /v1/chains?dry_run=true&dry_run=false&now=1",
            {},
            "query.dry_run: is given 2 times and takes one value; and 1 more",
        ),
        (
            "GET /metrics?name=x",
            None,
            "query.name: unknown query parameter 'name'; this request takes none",
        ),
    ],
)
async def test_a_query_parameter_that_the_gateway_would_ignore_is_refused(
    request_line: str, body: Any, message: str
) -> None:
    method, path = request_line.split(" ")
    refused = await answer(gateway(), method, path, body)

    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["detail"] == f"the request cannot be used: {message}"


async def test_a_list_parameter_takes_several_values() -> None:
    # Without Redis a request that is let through fails later.
    with pytest.raises(AttributeError, match="index"):
        await answer(gateway(), "GET", "/v1/runs?state=queued&state=failed&limit=1")


async def test_routes_in_openais_format_refuse_query_parameters_in_it() -> None:
    refused = await answer(gateway(), "GET", "/v1/models?count=1")

    assert refused.status_code == 422
    assert refused.json()["error"]["message"] == (
        "the request cannot be used: query.count: unknown query parameter 'count'; "
        "known here: after_id, before_id, limit"
    )


async def test_the_reward_service_refuses_query_parameters() -> None:
    assert (await answer(reward(), "GET", "/healthz?full=1")).status_code == 422
    assert (await answer(reward(), "GET", "/healthz")).status_code == 200


@pytest.mark.parametrize("app", [gateway, reward])
async def test_every_route_refuses_an_unknown_query_parameter(app: Callable[[], FastAPI]) -> None:
    made = app()
    for route in made.routes:
        if isinstance(route, APIRoute):
            for method in route.methods:
                refused = await answer(made, method, f"{route.path}?unheard_of=1")
                assert "unheard_of" in refused.text or method == "HEAD", route.path
                # OpenAI's fine-tuning API refuses all requests with 400.
                status = 400 if route.path.startswith("/openai/") else 422
                assert refused.status_code == status, route.path
