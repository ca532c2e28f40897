"""The `json_schema` verifier by value."""

import pytest

from reward.verifiers.base import BadReferenceError
from tests.unit.reward.scoring import score

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
MIXED = '[{}, ""]'.format
TREE = {"type": "array", "items": {"$ref": "#"}}


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ('{"name": "Ada", "age": 36}', "correct"),
        ('\n{"name": "Ada"}\n', "correct"),
        ('Here it is:\n```json\n{"name": "Ada"}\n```\nDone.', "correct"),
        ('```\n{"name": 1}\n```\nor\n```\n{"name": "Ada"}\n```', "correct"),
        ('<think>{}</think><answer>{"name": "Ada"}</answer>', "correct"),
        ('<think>```json\n{}\n```</think>\n{"name": "Ada"}', "correct"),
        ('<answer>```json\n{"name": "Ada"}\n```</answer>', "correct"),
        ('{"age": 36}', "wrong"),
        ('{"name": "Ada", "age": -1}', "wrong"),
        ('{"name": "Ada", "x": 1}', "wrong"),
        ("[]", "wrong"),
        ("", "no_answer"),
        ("  ", "no_answer"),
        ("Ada", "unparsable"),
        ('{"name": "Ada"', "unparsable"),
        ('Sure: {"name": "Ada"}', "unparsable"),
        ('{"name": "Ada", "age": NaN}', "unparsable"),
        ('{"age": ' + "9" * 5000 + "}", "unparsable"),
        ("[" * 100_000, "unparsable"),
    ],
)
def test_json_that_fits_the_schema_is_correct(completion: str, status: str) -> None:
    verdict = score("json_schema", completion, schema=PERSON)

    assert (verdict.status, verdict.reward) == (status, float(status == "correct")), verdict.detail


def test_the_detail_names_the_place_of_the_mismatch() -> None:
    verdict = score("json_schema", '{"name": "Ada", "age": -1}', schema=PERSON)

    assert verdict.detail == "$.age: -1 is less than the minimum of 0"


def test_the_answer_may_be_the_schema_as_object_or_text() -> None:
    assert score("json_schema", "7", {"type": "integer"}).status == "correct"
    assert score("json_schema", "7", '{"type": "string"}').status == "wrong"


def test_references_that_the_schema_itself_answers_are_followed() -> None:
    schema = {
        "$id": "http://127.0.0.1:9/tree",
        "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "tree"}},
        "$defs": {"leaf": {"$id": "leaf", "type": "integer"}, "named": {"$ref": "leaf"}},
        "enum": [{"left": 1}, {"left": "1"}, {"$ref": "no reference, but a value"}],
    }

    assert score("json_schema", '{"left": 1}', schema=schema).status == "correct"
    assert score("json_schema", '{"left": "1"}', schema=schema).status == "wrong"


@pytest.mark.parametrize(
    ("completion", "schema", "status"),
    [
        ("1e400", {"multipleOf": 0.01}, "wrong"),
        ("4.35", {"multipleOf": 0.01}, "correct"),  # 434.99999999999994 as floats
        ("4.355", {"multipleOf": 0.01}, "wrong"),
        ("7", {"multipleOf": 2}, "wrong"),
        ("[1, 1.0]", {"uniqueItems": True}, "wrong"),
        ("[1, true, 0, false, null]", {"uniqueItems": True}, "correct"),
        ('[{"a": [1], "b": 2}, {"b": 2.0, "a": [1]}]', {"uniqueItems": True}, "wrong"),
        ("[[1], [1, 1], {}]", {"uniqueItems": True}, "correct"),
        ("[[], []]", {"uniqueItems": False}, "correct"),
        (
            "[" + ",".join(f'[{n},""]' for n in range(30_000)) + "]",
            {"uniqueItems": True},
            "correct",
        ),
    ],
)
def test_numbers_and_items_are_compared_exactly_and_in_linear_time(
    completion: str, schema: object, status: str
) -> None:
    assert score("json_schema", completion, schema).status == status


def test_extract_whole_refuses_text_around_the_json() -> None:
    fenced = '```json\n{"name": "Ada"}\n```'

    assert score("json_schema", fenced, schema=PERSON, extract="whole").status == "unparsable"


def test_json_nested_too_deep_for_a_recursive_schema_is_wrong() -> None:
    assert score("json_schema", "[" * 5 + "]" * 5, TREE).status == "correct"
    assert score("json_schema", "[" * 900 + "]" * 900, TREE).status == "wrong"


@pytest.mark.parametrize(
    "schema",
    [
        None,
        7,
        "no json",
        "[]",
        {"type": "nothing"},
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        # No answer meets these references, and yet they are looked up.
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "items": {"$ref": "#/definitions/x"},
        },
        {"additionalProperties": {"anyOf": [{"$dynamicRef": "#nowhere"}]}},
        # The verifier fetches no reference, even from a server that would answer.
        {"$ref": "http://127.0.0.1:9/schema.json"},
    ],
)
def test_a_schema_that_cannot_be_used_is_never_the_answers_fault(schema: object) -> None:
    with pytest.raises(BadReferenceError):
        score("json_schema", "{}", schema)
