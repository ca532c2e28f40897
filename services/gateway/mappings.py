"""The column mapping of an upload, from its text."""

import re
from collections.abc import Mapping
from dataclasses import fields
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headrace.nearest import did_you_mean
from services.contracts.strict_json import NotJSON, decode
from services.contracts.wrong_values import wrong_value
from services.datasets import ColumnMapping, KnownFile, known_file
from services.http import Problem

EXAMPLE = 'a mapping is JSON like {"prompt": "question", "answer": "answer"}'


def read_mapping(text: str | None) -> ColumnMapping | KnownFile:
    """Return the mapping that an upload gives, as JSON or by name. Raises Problem 422."""
    if text is None or not text.strip():
        return ColumnMapping()
    if re.fullmatch(r"[\w-]+", text.strip()):
        return known_file(text.strip())
    try:
        return TypeAdapter(ColumnMapping).validate_python(decode(text.encode()))
    except NotJSON as error:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"the mapping is not JSON ({error}): {EXAMPLE}",
            [("mapping", str(error))],
        ) from None
    except ValidationError as error:
        problems = [
            (".".join(["mapping", *map(str, item["loc"])]), _wrong_key_or_value(item))
            for item in error.errors()
        ]
        detail = f"the mapping cannot be used ({': '.join(problems[0])}): {EXAMPLE}"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, problems) from None


def _wrong_key_or_value(item: Mapping[str, Any]) -> str:
    if item["type"] != "unexpected_keyword_argument":
        return wrong_value(item)
    known = [field.name for field in fields(ColumnMapping)]
    return f"unknown key{did_you_mean(str(item['loc'][-1]), known)}; known here: {', '.join(known)}"
