"""The `json_schema` verifier: is the completion JSON, and does it fit a schema?

A schema may hold regular expressions, which may take exponential time; the pool's deadlines bound
it. `$ref` may only name a part of the schema itself: the verifier fetches nothing.
"""

import json
import math
import re
from collections.abc import Hashable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from reward.verifiers.base import (
    BadReferenceError,
    Item,
    Verdict,
    Verifier,
    VerifierParams,
    correct,
    failed,
    shown,
)
from reward.verifiers.math.final_answer import tagged
from services.contracts.scores import ScoreStatus

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


class JsonSchemaParams(VerifierParams):
    """The schema, and the places for the JSON."""

    wanted: dict[str, Any] | None = Field(
        None,
        alias="schema",
        description="The JSON Schema (draft 2020-12, unless it names another); without one, the "
        "answer is the schema.",
    )
    extract: Literal["any", "whole"] = Field(
        "any",
        description="`whole`: the answer is the JSON. `any`: the last <answer> tag or ``` "
        "fence is looked into first.",
    )


class JsonSchemaVerifier(Verifier[JsonSchemaParams]):
    """Validates JSON. Rewards 1 and 0."""

    name = "json_schema"
    description = "Correct when the completion is JSON that fits a schema (parameter, or answer)."
    Params = JsonSchemaParams
    reference = "schema"

    def warm(self) -> None:
        """Import the library, and build its own schemas."""
        _validator('{"type": "object"}')

    def check_reference(self, item: Item, params: JsonSchemaParams) -> None:
        _validator(_schema(item.answer, params))

    def score(self, item: Item, params: JsonSchemaParams) -> Verdict:
        validator = _validator(_schema(item.answer, params))
        text = _document(item.after_thoughts) if params.extract == "any" else item.after_thoughts
        if not text.strip():
            return failed(ScoreStatus.NO_ANSWER, "the completion is empty")
        try:
            document = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            return failed(ScoreStatus.UNPARSABLE, f"{shown(text.strip())} is no JSON: {error}")
        try:
            problem = next(validator.iter_errors(document), None)
        except RecursionError:
            return failed(ScoreStatus.WRONG, "the JSON is nested too deeply")
        if problem is None:
            return correct()
        return failed(ScoreStatus.WRONG, f"{problem.json_path}: {problem.message[:300]}")


def _schema(answer: Any, params: JsonSchemaParams) -> str:
    """Return the schema as JSON text, which can be a cache key. Raises BadReferenceError."""
    schema = params.wanted if params.wanted is not None else answer
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, dict):
        raise BadReferenceError(
            f"answer {shown(answer)} is no JSON Schema, and params has no 'schema' either"
        )
    return json.dumps(schema)


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """Return the validator of a schema. Raises BadReferenceError for an invalid schema."""
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]
    from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    try:
        schema = json.loads(text)
        if not isinstance(schema, dict):
            raise BadReferenceError(f"schema {shown(text)} is no JSON object")
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        # With an explicit registry, the library fetches nothing from the network.
        validator = extend(kind, {"uniqueItems": _unique_items, "multipleOf": _multiple_of})(
            schema, registry=REGISTRY
        )
        # Check references now. A dead reference would show only for some answers, and a circle of
        # references for the first answer.
        root = specification_with(kind.META_SCHEMA["$schema"]).create_resource(schema)
        _resolve(root, REGISTRY.resolver_with_root(root))
        validator.is_valid(None)
    except BadReferenceError:
        raise
    except SchemaError as error:
        raise BadReferenceError(
            f"schema {shown(text)} is no JSON Schema: {error.message[:200]}"
        ) from None
    except Unresolvable as error:
        raise BadReferenceError(
            f"schema {shown(text)} refers to what is not in it: {shown(error)}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise BadReferenceError(f"schema {shown(text)} cannot be used: {error}") from None
    return validator


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check `uniqueItems` in linear time: the library compares each item with each other item."""
    from jsonschema import ValidationError

    if not wanted or not validator.is_type(instance, "array"):
        return
    if len({_key(item) for item in instance}) < len(instance):
        yield ValidationError("the array has equal elements")


def _key(value: Any) -> Hashable:
    """Return a key that equal JSON values share: 1 and 1.0, but not 1 and true."""
    if isinstance(value, list):
        return ("array", *map(_key, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, _key(inner)) for name, inner in value.items()))
    return (isinstance(value, bool), value)


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check `multipleOf` by the decimals as they are written. The library divides floats: then 4.35
    fails for 0.01, and `1e400`, which is read as infinity, raises an error."""
    from jsonschema import ValidationError

    if validator.is_type(instance, "number"):
        finite = math.isfinite(instance)
        if not finite or Fraction(str(instance)) % Fraction(str(divisor)):
            yield ValidationError(f"{instance!r} is not a multiple of {divisor}")


def _resolve(resource: Any, resolver: Any) -> None:
    """Look up the references in a schema. Raises Unresolvable."""
    if isinstance(resource.contents, dict):
        for key in _REFERENCES:
            if isinstance(name := resource.contents.get(key), str):
                resolver.lookup(name)
    for inner in resource.subresources():
        _resolve(inner, resolver.in_subresource(inner))


def _document(answer: str) -> str:
    """Return the part of the completion that should be JSON."""
    content = tagged(answer)
    text = answer if content is None else content
    fenced = _FENCE.findall(text)
    return fenced[-1] if fenced else text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not in JSON")
