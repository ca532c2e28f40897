"""Templates of graders: text with places such as `{{ item.answer }}`. Pure, linear time.

A template only substitutes. Statements, filters and expressions of Jinja are refused: a grader is
data, and must not run code. A text that is filled in is not read as a template again.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.nearest import did_you_mean
from reward.verifiers.base import shown

MAX_TEMPLATE = 100_000
"""Characters of a template."""
MAX_RENDERED = 4 << 20
"""Characters of a template that is filled in. A template may name a long completion many times."""
SAMPLE = ("output_text", "output_json", "output_tools", "choices")
"""The fields of `sample`."""
PLAIN = (
    "a template only fills in places such as {{ item.answer }} or {{ sample.output_text }}; do the "
    "rest in a grader of type python"
)
_ROOT = re.compile(r"\s*(\w+)")
_STEP = re.compile(r"\.(\w+)|\[(\d{1,6})\]|\[\"([^\"]*)\"\]|\['([^']*)'\]")


class MissingError(Exception):
    """A place has no value. `is_answer`: the completion is to blame, not the row."""

    def __init__(self, message: str, is_answer: bool) -> None:
        super().__init__(message)
        self.is_answer = is_answer


class TemplatePlace(NamedTuple):
    """A place in a template."""

    root: str
    steps: tuple[str | int, ...]
    text: str
    """As the template writes it."""


Template = tuple[str | TemplatePlace, ...]
"""Texts, and the places between them."""


@lru_cache(maxsize=512)
def parsed(template: str) -> Template:
    """Return the parts of a template. Raises ValueError with a reason and the way out."""
    parts: list[str | TemplatePlace] = []
    begin = 0
    while (opened := template.find("{{", begin)) >= 0:
        closed = template.find("}}", opened)
        if closed < 0:
            raise ValueError(f"{shown(template[opened:])} has no end: close the place with }}}}")
        parts += [_literal(template[begin:opened]), _place(template[opened + 2 : closed])]
        begin = closed + 2
    parts.append(_literal(template[begin:]))
    return tuple(part for part in parts if part)


def rendered(template: str, names: Mapping[str, Any]) -> str:
    """Fill in a template from `names`: `item` and `sample`. Raises MissingError."""
    parts, size = [], 0
    for part in parsed(template):
        parts.append(part if isinstance(part, str) else _text(value_of(part, names)))
        size += len(parts[-1])
        if size > MAX_RENDERED:
            raise MissingError(
                f"template {shown(template)} fills up to more than {MAX_RENDERED} characters", False
            )
    return "".join(parts)


def value_of(place: TemplatePlace, names: Mapping[str, Any]) -> Any:
    """Return the value at a place. Raises MissingError."""
    value, path = names[place.root], place.root
    is_answer = place.root == "sample"
    for step in place.steps:
        there = _keys(value)
        key = _key_in(value, step)
        if key is None:
            if is_answer and path == "sample":
                raise MissingError("the answer is not JSON, and sample.output_json needs it", True)
            what = f"{path} has no {step!r}"
            has = f"; it has {', '.join(there[:20])}" if there else _instead(value)
            raise MissingError(f"{{{{ {place.text} }}}}: {what}{has}", is_answer)
        value, path = value[key], f"{path}.{step}"
    if value is None:
        raise MissingError(f"{{{{ {place.text} }}}}: {path} is null", is_answer)
    return value


def _literal(text: str) -> str:
    for mark in ("{%", "{#"):
        if mark in text:
            begin = text.find(mark)
            raise ValueError(f"{shown(text[begin:])} is a statement or a comment of Jinja: {PLAIN}")
    return text


def _place(inner: str) -> TemplatePlace:
    """Parse the inside of a place."""
    text = inner.strip()
    root = _ROOT.match(inner)
    end = root.end() if root else 0
    steps: list[str | int] = []
    while step := _STEP.match(inner, end):
        name, number, *quoted = step.groups()
        steps.append(int(number) if number else next(k for k in (name, *quoted) if k is not None))
        end = step.end()
    if root is None or inner[end:].strip():
        raise ValueError(f"{{{{ {text[:80]} }}}} is an expression: {PLAIN}")
    if root[1] not in ("item", "sample"):
        hint = did_you_mean(root[1], ["item", "sample"]) or ""
        raise ValueError(f"{{{{ {text[:80]} }}}} is of neither item nor sample{hint}")
    if not steps:
        raise ValueError(f"{{{{ {text[:80]} }}}} names no field, as {root[1]}.FIELD does")
    if root[1] == "sample" and steps[0] not in SAMPLE:
        hint = did_you_mean(str(steps[0]), SAMPLE) or ""
        has = ", ".join(SAMPLE)
        raise ValueError(f"{{{{ {text[:80]} }}}}: sample has {has}, not {steps[0]!r}{hint}")
    return TemplatePlace(root[1], tuple(steps), text)


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*map(str, value)]
    return [f"{len(value)} entries"] if isinstance(value, list) else []


def _instead(value: Any) -> str:
    return "; it is empty" if value in ({}, []) else f": it is {shown(value)}"


def _key_in(value: Any, step: str | int) -> Any:
    """Return the key or index of `value` that a step means. Return None if it has none."""
    if isinstance(value, dict):
        return str(step) if str(step) in value else None
    if isinstance(value, list) and str(step).isdecimal() and len(str(step)) < 7:
        return int(step) if int(step) < len(value) else None
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
