"""The operations of the API by their ids, which clients are generated from."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from services.contracts.events import EventKind
from services.gateway.app import create_app
from services.gateway.config_components import config_schema
from services.gateway.settings import GatewaySettings

LISTED = Path(__file__).parent / "operations.txt"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(GatewaySettings(), "hr-key").openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, str, str, dict[str, Any]]]:
    return sorted(
        (operation["operationId"], method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )


def test_operation_ids_are_those_of_the_list(document: dict[str, Any]) -> None:
    """A changed id breaks every generated client. A new operation needs a line in the list."""
    found = [f"{id} {method} {path}" for id, method, path, _ in operations(document)]

    assert found == LISTED.read_text().splitlines()
    ids = [line.split()[0] for line in found]
    assert len(ids) == len(set(ids))
    for id in ids:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", id), f"{id} is not THING_verb"


def test_every_list_takes_limit_and_cursor_and_answers_next(document: dict[str, Any]) -> None:
    for id, _, path, operation in operations(document):
        if path.startswith("/openai/"):
            # OpenAI's lists have `after`.
            continue
        parameters = {parameter["name"] for parameter in operation.get("parameters", [])}
        assert not parameters & {"before", "after", "start", "offset", "page"}, id
        if not id.endswith("_list") or "models" in id:
            # OpenAI's lists of models have no pages.
            continue
        content = operation["responses"]["200"]["content"]["application/json"]["schema"]
        answer = document["components"]["schemas"][content["$ref"].rpartition("/")[2]]
        assert {"limit", "cursor"} <= parameters, id
        assert "next" in answer["properties"], id
        assert any(v.get("type") == "array" for v in answer["properties"].values()), id


def test_an_action_is_a_word_behind_the_path_of_its_thing(document: dict[str, Any]) -> None:
    for path in document["paths"]:
        assert ":" not in path, f"write {path} with the action as a part of its own"


def test_the_run_config_is_a_component_with_the_schema_that_the_api_answers(
    document: dict[str, Any],
) -> None:
    components = document["components"]["schemas"]
    answered = config_schema()
    parts = answered.pop("$defs")

    text = json.dumps(document)
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert named <= components.keys()
    assert {"RLConfig", "SFTConfig"} <= parts.keys()
    for name, part in parts.items():
        component = components.get(f"{name}Input", components[name])
        moved = json.dumps(component).replace("#/components/schemas/", "#/$defs/")
        assert json.loads(re.sub(r'(#/\$defs/\w+)Input"', r'\1"', moved)) == part, name
    config = components["RunSubmission"]["properties"]["config"]
    assert config["anyOf"][0] == {"$ref": "#/components/schemas/RunConfig"}
    assert config["anyOf"][1] == {"type": "object", "additionalProperties": True}


def test_the_document_is_the_same_each_time() -> None:
    app = create_app(GatewaySettings(), "hr-key")
    first = json.dumps(app.openapi())
    assert json.dumps(app.openapi()) == first


def test_both_streams_of_events_name_the_data_of_each_kind(document: dict[str, Any]) -> None:
    components = document["components"]["schemas"]
    assert components["RunEvent"]["discriminator"]["mapping"].keys() == {*get_args(EventKind)}
    reference = {"$ref": "#/components/schemas/RunEvent"}
    for path, within in (("/v1/runs/{run}/events", None), ("/v1/stream", "anyOf")):
        content = document["paths"][path]["get"]["responses"]["200"]["content"]
        schema = content["text/event-stream"]["schema"]
        assert reference in schema[within] if within else reference.items() <= schema.items()
