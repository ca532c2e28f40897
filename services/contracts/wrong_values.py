"""Say what is wrong with a value that pydantic refuses, in the words of a user instead of Python's.

All places that show such a refusal take its words from here: run configs, settings, requests and
the parameters of verifiers.
"""

from collections.abc import Mapping
from typing import Any

from headrace.wording import quoted

WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "dataclass_type": "a mapping",
    "model_attributes_type": "a mapping",
    "path_type": "a path",
    "too_short": "a list of at least {min_length} items",
    "too_long": "a list of at most {max_length} items",
}
"""The value that is expected, by pydantic's type of the error."""


def wrong_value(detail: Mapping[str, Any], is_secret: bool = False) -> str:
    """Say one of the errors of a ValidationError. A short value is quoted, unless `is_secret`."""
    kind = str(detail["type"])
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "is not known here"
    if kind == "value_error":
        return str(detail["msg"]).removeprefix("Value error, ")
    given = detail.get("input")
    is_quotable = isinstance(given, str | int | float | None) and "input" in detail
    shown = quoted(given) if is_quotable and not is_secret else ""
    if (wanted := WANTED.get(kind)) is None:
        return f"{detail['msg']} (got {shown})" if shown else str(detail["msg"])
    verb = "must have" if kind.startswith("string_too") else "must be"
    sentence = f"{verb} {wanted.format_map(detail.get('ctx', {}))}"
    return f"{sentence}, not {shown}" if shown else sentence
