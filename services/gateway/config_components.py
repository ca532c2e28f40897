"""The run config as JSON Schema, and as the component `RunConfig` of the OpenAPI document.

Requests take a config as it is, and answer everything that is wrong with it at once, so no route
declares it as a model.
"""

import json
from typing import Any

from pydantic import TypeAdapter

from services.contracts.config import RunConfig

COMPONENTS = "#/components/schemas/"
WHOLE = ("RunSubmission", "PreviewRequest", "StepSubmission")
"""Bodies whose `config` may be a whole config."""
CHANGES = ("Fork", "Resumption", "EvaluationSubmission")
"""Bodies whose `config` changes another config."""


def config_schema(ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
    """Return the JSON Schema of a run's config. Each key has a description: a key without one gets
    that of its section, or of the variant that it selects."""
    schema = TypeAdapter(RunConfig).json_schema(ref_template=ref_template)
    parts: dict[str, Any] = schema["$defs"]
    for part in parts.values():
        for key in part["properties"].values():
            section = parts[key["$ref"].rpartition("/")[2]] if "$ref" in key else part
            key.setdefault("description", section["description"])
    return schema


def with_config(document: dict[str, Any]) -> dict[str, Any]:
    """Add `RunConfig` and its parts to an OpenAPI document, and refer to it from the bodies that
    take a config."""
    components: dict[str, Any] = document["components"]["schemas"]
    schema = config_schema(COMPONENTS + "{model}")
    parts: dict[str, Any] = schema.pop("$defs")
    # An answer has all keys of a part, so its schema may differ from that of a request.
    differing = [name for name in parts if components.get(name, parts[name]) != parts[name]]
    text = json.dumps({**parts, "RunConfig": schema})
    for name in differing:
        text = text.replace(f'"{COMPONENTS}{name}"', f'"{COMPONENTS}{name}Input"')
    for name, part in json.loads(text).items():
        component = f"{name}Input" if name in differing else name
        components[component] = {**part, "title": component}
        for key in part.get("properties", {}).values():
            _describe_default(key)
    components["RunConfig"]["description"] = (
        "The config of a run, as `GET /v1/schema` has it: `rl` or `sft`."
    )
    for body in CHANGES:
        components[body]["properties"]["config"]["description"] += " Keys as in `RunConfig`."
    for body in WHOLE:
        config = components[body]["properties"]["config"]
        changes = {key: config.pop(key) for key in ("type", "additionalProperties")}
        config["anyOf"] = [{"$ref": f"{COMPONENTS}RunConfig"}, changes]
    return document


def _describe_default(key: dict[str, Any]) -> None:
    """Say a default that is a model in the description instead, and keep it as `x-default`:
    generators of clients refuse such a default, and leave out the model that has it."""
    default = key.get("default")
    if isinstance(default, dict) and key.keys() & {"$ref", "oneOf", "anyOf"}:
        key["x-default"] = key.pop("default")
        chosen = f"`{default['type']}`" if "type" in default else "the defaults of its keys"
        key["description"] = f"{key['description'].rstrip()} Default: {chosen}."
