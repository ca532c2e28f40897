"""The OpenAPI documents leave nothing unsaid: what the two services' descriptions must have."""

from collections.abc import Iterator
from typing import Any

import pytest

from reward.app import create_app as create_reward
from reward.metrics import Metrics
from reward.remote_pool import Calls
from reward.scoring import Service
from reward.teachers import Teachers
from reward.verifiers.registry import build_registry
from reward.workers.pool import Pool
from reward.workers.worker_processes import WorkerOptions
from services.gateway.app import create_app as create_gateway
from services.gateway.settings import GatewaySettings

PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}


IN_OPENAIS_FORMAT = (
    *("/v1/sessions/", "/v1/chat/", "/v1/completions", "/v1/models", "/v1/responses"),
    "/openai/",
)
IN_ANTHROPICS_FORMAT = ("/v1/messages", "/v1/messages/count_tokens")
ANTHROPIC = {
    "application/json": {"schema": {"$ref": "#/components/schemas/AnthropicErrorDocument"}}
}
OPENAI = {"application/json": {"schema": {"$ref": "#/components/schemas/OpenAIErrorDocument"}}}


def gateway() -> dict[str, Any]:
    return create_gateway(GatewaySettings(), "hr-key").openapi()


def reward() -> dict[str, Any]:
    metrics = Metrics()
    pool = Pool(
        workers=1,
        spare=0,
        capacity=1,
        options=WorkerOptions(1 << 30),
        metrics=metrics,
    )
    calls = Calls([], at_once=1, capacity=1, metrics=metrics)
    service = Service(build_registry(), pool, calls, Teachers({}, at_once=1), metrics)
    return create_reward(service, 1 << 20).openapi()


@pytest.fixture(params=[gateway, reward], ids=["gateway", "reward"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    described: dict[str, Any] = request.param()
    return described


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_operation_has_a_summary_and_says_what_it_does(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        assert operation["summary"], name
        assert len(operation.get("description", "")) > 20, name
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), f"{name}: {parameter['name']}"


def test_every_operation_says_what_it_answers(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            assert response["description"], f"{name} {status}"
            if status.startswith("2") and status != "204":
                assert response.get("content"), f"{name} {status}"
                json = response["content"].get("application/json", {"schema": {"$ref": ""}})
                assert json["schema"], f"{name} {status} has no model"


def test_every_error_is_a_problem_document(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        errors = {s: r for s, r in operation["responses"].items() if s[0] in "45"}
        assert errors, name
        for status, response in errors.items():
            # The reward service's readiness answers as a health check is read: by its status.
            if name != "GET /readyz":
                path = name.split()[1]
                wanted = OPENAI if path.startswith(IN_OPENAIS_FORMAT) else PROBLEM
                wanted = ANTHROPIC if path.endswith(IN_ANTHROPICS_FORMAT) else wanted
                assert response["content"] == wanted, f"{name} {status}"


def test_whatever_names_a_thing_says_what_happens_if_it_is_not_there() -> None:
    for name, operation in operations(gateway()):
        if "{" in name:
            assert "404" in operation["responses"], name


def test_every_body_has_an_example(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name, operation in operations(document):
        for kind, body in operation.get("requestBody", {}).get("content", {}).items():
            if kind == "application/octet-stream":
                continue
            schema = schemas[body["schema"]["$ref"].rpartition("/")[2]]
            if kind == "application/json":
                assert "example" in schema, f"{name}: {body['schema']}"
            for field, described in schema["properties"].items():
                assert described.get("description"), f"{name}: {field}"


def test_every_field_of_every_model_has_a_sentence(document: dict[str, Any]) -> None:
    lacking = [
        f"{model}.{field}"
        for model, schema in document["components"]["schemas"].items()
        for field, described in schema.get("properties", {}).items()
        if not described.get("description")
    ]

    assert lacking == []
