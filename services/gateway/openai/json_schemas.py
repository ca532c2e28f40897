"""Whether an object is a JSON schema, as chat templates and vLLM's parsers read it. Pure.

The gateway checks while other requests wait, and whoever has a session's key may write any schema.
So the check is one pass in C, the same whichever draft `$schema` names: a few milliseconds for the
longest schema, where the meta-schema of draft 2020-12 takes seconds. vLLM checks what else its
grammar needs, patterns for example.
"""

from typing import Annotated, Any, Literal, TypedDict

import msgspec

Type = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
Count = Annotated[int, msgspec.Meta(ge=0)]
Schema = TypedDict(
    "Schema",
    {
        "$schema": str,
        "$id": str,
        "$ref": str,
        "$comment": str,
        "title": str,
        "description": str,
        "format": str,
        "pattern": str,
        "type": Type | list[Type],
        "enum": list[Any],
        "required": list[str],
        "properties": "dict[str, Schema | bool]",
        "patternProperties": "dict[str, Schema | bool]",
        "additionalProperties": "Schema | bool",
        "propertyNames": "Schema | bool",
        "dependencies": "dict[str, Schema | bool | list[str]]",
        "dependentSchemas": "dict[str, Schema | bool]",
        "definitions": "dict[str, Schema | bool]",
        "$defs": "dict[str, Schema | bool]",
        "items": "Schema | bool | list[Schema | bool]",
        "prefixItems": "list[Schema | bool]",
        "additionalItems": "Schema | bool",
        "contains": "Schema | bool",
        "anyOf": "list[Schema | bool]",
        "oneOf": "list[Schema | bool]",
        "allOf": "list[Schema | bool]",
        "not": "Schema | bool",
        "if": "Schema | bool",
        "then": "Schema | bool",
        "else": "Schema | bool",
        "minimum": float,
        "maximum": float,
        "exclusiveMinimum": float,
        "exclusiveMaximum": float,
        "multipleOf": float,
        "minLength": Count,
        "maxLength": Count,
        "minItems": Count,
        "maxItems": Count,
        "minProperties": Count,
        "maxProperties": Count,
        "uniqueItems": bool,
    },
    total=False,
)
"""Keywords of draft 7, and those of later drafts that say the same; any others are not read."""


def schema_problem(schema: dict[str, Any]) -> str:
    """Explain why `schema` is not a valid JSON schema; '' if it is valid."""
    try:
        msgspec.convert(schema, Schema)
    except msgspec.ValidationError as error:
        return str(error)[:500]
    return ""
