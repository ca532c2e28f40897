"""The operations of the API by their ids, which clients are generated from."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from headrace import models
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
    document = json.loads(json.dumps(document))
    components = document["components"]["schemas"]
    answered = config_schema()
    parts = answered.pop("$defs")

    text = json.dumps(document)
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert named <= components.keys()
    assert {"RLConfig", "SFTConfig"} <= parts.keys()
    for name, part in parts.items():
        component = {**components.get(f"{name}Input", components[name]), "title": name}
        for key in component["properties"].values():
            if "x-default" in key:
                described = key["description"].rpartition(" Default: ")[0]
                key |= {"default": key.pop("x-default"), "description": described}
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


def test_generators_of_clients_take_the_document(document: dict[str, Any]) -> None:
    """openapi-python-client leaves out a model with a default that is a model, and one of two
    models with one title."""
    schemas = document["components"]["schemas"]
    titles = [schema["title"] for schema in schemas.values() if "title" in schema]
    assert sorted(titles) == sorted(set(titles))
    defaults = {
        f"{name}.{key}": field
        for name, schema in schemas.items()
        for key, field in schema.get("properties", {}).items()
        if "x-default" in field
    }
    assert len(defaults) > 20
    for name, schema in schemas.items():
        for key, field in schema.get("properties", {}).items():
            is_model = field.keys() & {"$ref", "oneOf", "anyOf"}
            assert not (is_model and isinstance(field.get("default"), dict)), f"{name}.{key}"
    assert defaults["Algorithm.loss"]["description"].endswith(" Default: `ppo`.")
    for path, field in defaults.items():
        name, _, key = path.partition(".")
        made = models.__dict__[name].model_fields[key].get_default(call_default_factory=True)
        assert made.model_dump(mode="json") == field["x-default"], path


def test_a_model_of_the_client_has_the_fields_of_its_base() -> None:
    assert issubclass(models.RunRecord, models.RunSummary)
    assert set(models.RunRecord.model_fields) > set(models.RunSummary.model_fields)
