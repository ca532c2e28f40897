"""OpenAI's grader objects, and what is wrong with one that cannot be used."""

import ast
import keyword
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headrace.nearest import did_you_mean
from reward.verifiers.base import VerifierParams, shown
from reward.verifiers.graders import formulas
from reward.verifiers.graders.templates import MAX_TEMPLATE, parsed

MAX_DEPTH = 8
"""How many graders may be nested in each other."""
MAX_GRADERS = 64
"""Graders of one reward."""
MAX_SOURCE = 256 << 10
"""Characters of a Python grader, as at OpenAI."""
TYPES = ("string_check", "text_similarity", "score_model", "label_model", "python", "multi")
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of a message's parts that are text."""


def _plain(template: str) -> str:
    parsed(template)
    return template


def _of_text(value: Any) -> Any:
    """Return a message's content as one text. Raises ValueError for pictures and sound."""
    if not isinstance(value, list | dict):
        return value
    texts = []
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ValueError(
                f"a part of type {shown(kind)} is not supported: give text, or parts of the types "
                f"{', '.join(TEXT_PARTS)}"
            )
        texts.append(part["text"])
    return "\n".join(texts)


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Grader(_Object):
    name: str = Field(
        min_length=1, max_length=100, description="The grader's name, for errors and metrics."
    )


TemplateText = Annotated[
    str, Field(max_length=MAX_TEMPLATE, description="A text with places such as {{ item.answer }}.")
]


class StringCheck(_Grader):
    """Compares two texts: 1 or 0."""

    type: Literal["string_check"]
    input: TemplateText
    reference: TemplateText
    operation: Literal["eq", "ne", "like", "ilike"] = Field(
        description="eq: both are equal; ne: they differ; like: `input` contains `reference`; "
        "ilike: the same without regard to case."
    )

    _templates = field_validator("input", "reference")(_plain)


class TextSimilarity(_Grader):
    """How similar two texts are: 0 to 1."""

    type: Literal["text_similarity"]
    input: TemplateText
    reference: TemplateText
    evaluation_metric: Literal[
        "cosine",
        "fuzzy_match",
        "bleu",
        "gleu",
        "meteor",
        "rouge_1",
        "rouge_2",
        "rouge_3",
        "rouge_4",
        "rouge_5",
        "rouge_l",
    ] = Field(description="The measure. cosine needs an embedding model.")

    _templates = field_validator("input", "reference")(_plain)


class GraderMessage(_Object):
    """A message to a model that grades."""

    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: TemplateText
    type: Literal["message"] = "message"

    _parts = field_validator("content", mode="before")(_of_text)
    _templates = field_validator("content")(_plain)


class SamplingParams(_Object):
    """How a model that grades samples its reply."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = None
    max_completions_tokens: int | None = Field(None, ge=1)
    reasoning_effort: str | None = Field(None, max_length=20)


class _ModelGrader(_Grader):
    model: str = Field(
        min_length=1,
        max_length=300,
        description="A name of the setting --judges, or NAME/MODEL to ask that endpoint for MODEL.",
    )
    input: list[GraderMessage] = Field(min_length=1, max_length=100)
    sampling_params: SamplingParams = SamplingParams()


class ScoreModel(_ModelGrader):
    """A model gives a number on a scale."""

    type: Literal["score_model"]
    range: tuple[float, float] = Field(
        (0.0, 1.0), description="The lowest and the highest score; the score is the reward."
    )

    @field_validator("range")
    @classmethod
    def _is_a_scale(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if not -1e12 <= scale[0] < scale[1] <= 1e12:
            raise ValueError(f"{list(scale)} is no scale: give [lowest, highest]")
        return scale


class LabelModel(_ModelGrader):
    """A model gives one of some labels: 1 for a label that passes, else 0."""

    type: Literal["label_model"]
    labels: list[str] = Field(min_length=1, max_length=100)
    passing_labels: list[str] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _passes_known_labels(self) -> "LabelModel":
        for label in self.passing_labels:
            if label not in self.labels:
                hint = did_you_mean(label, self.labels) or f"; there is {', '.join(self.labels)}"
                raise ValueError(f"passing label {shown(label)} is not in labels{hint}")
        return self


class PythonGrader(_Grader):
    """The function `grade(sample, item)` of a program in the sandbox."""

    type: Literal["python"]
    source: str = Field(max_length=MAX_SOURCE, description="A program that defines grade.")
    image_tag: str | None = Field(
        None,
        max_length=100,
        description="Not used: the sandbox has the packages of --code-python.",
    )

    @field_validator("source")
    @classmethod
    def _defines_grade(cls, source: str) -> str:
        if problem := _problem_of(source):
            raise ValueError(problem)
        return source


class Multi(_Grader):
    """Computes a reward from the scores of other graders."""

    type: Literal["multi"]
    graders: dict[str, "Grader"] = Field(
        min_length=1, description="Graders by the names that `calculate_output` has for them."
    )
    calculate_output: str = Field(
        description="A formula: names of graders, numbers, + - * / ^ and min, max, abs, floor, "
        "ceil, exp, sqrt, log."
    )

    @field_validator("graders", mode="before")
    @classmethod
    def _are_named(cls, graders: Any) -> Any:
        """Accept one grader, or a list, whose graders go by their own names."""
        if isinstance(graders, dict) and isinstance(graders.get("type"), str):
            graders = [graders]
        if not isinstance(graders, list):
            return graders
        named: dict[str, Any] = {}
        for grader in graders:
            name = grader.get("name") if isinstance(grader, dict) else None
            if not isinstance(name, str):
                raise ValueError("a grader has no name")
            if name in named:
                raise ValueError(f"two graders are called {shown(name)}: rename one")
            named[name] = grader
        return named

    @field_validator("graders")
    @classmethod
    def _can_stand_in_a_formula(cls, graders: dict[str, "Grader"]) -> dict[str, "Grader"]:
        seen: dict[str, str] = {}
        for name in graders:
            read = formulas.normal(name)
            if name in formulas.FUNCTIONS:
                raise ValueError(f"{name!r} is a function of calculate_output: rename the grader")
            if not read.isidentifier() or keyword.iskeyword(read) or len(name) > 100:
                raise ValueError(
                    f"{shown(name)} cannot stand in calculate_output: use letters, digits and _"
                )
            if read in seen:
                raise ValueError(f"{shown(seen[read])} and {shown(name)} are one name: rename one")
            seen[read] = name
        return graders

    @model_validator(mode="after")
    def _has_a_value(self) -> "Multi":
        try:
            formulas.check(self.calculate_output, self.graders)
        except formulas.FormulaError as error:
            raise ValueError(f"calculate_output of {shown(self.name)}: {error}") from None
        return self


Grader = Annotated[
    StringCheck | TextSimilarity | ScoreModel | LabelModel | PythonGrader | Multi,
    Field(discriminator="type"),
]
Leaf = StringCheck | TextSimilarity | ScoreModel | LabelModel | PythonGrader


class GraderParams(VerifierParams):
    """A grader object as OpenAI's API has it, and the limits of its parts."""

    grader: Grader = Field(description="OpenAI's grader object.")
    timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds (wall clock) for the graders that compute, and for each model that "
        "is asked, further attempts included.",
    )
    time_limit: float = Field(
        5.0, gt=0, le=600, description="Seconds of CPU time that a Python grader may take."
    )
    memory_mb: int = Field(512, ge=16, description="Memory that a Python grader may take, in MiB.")
    attempts: int = Field(
        3, ge=1, le=100, description="Tries for a model's reply, and again for a readable one."
    )

    @field_validator("grader", mode="before")
    @classmethod
    def _is_bounded(cls, grader: Any) -> Any:
        """Refuse what would nest too deep before it is parsed."""
        waiting, count = [(grader, 1)], 0
        while waiting:
            part, depth = waiting.pop()
            count += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nests more than {MAX_DEPTH} graders")
            if count > MAX_GRADERS:
                raise ValueError(f"has more than {MAX_GRADERS} graders")
            if not isinstance(part, dict):
                continue
            if part.get("type") not in TYPES:
                raise ValueError(_unknown_type(part))
            below = part.get("graders")
            if isinstance(below, dict) and not isinstance(below.get("type"), str):
                below = [*below.values()]
            elif isinstance(below, dict):
                below = [below]
            if isinstance(below, list):
                waiting += [(each, depth + 1) for each in below]
        return grader


def leaves(grader: Any, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Iterate over the graders that are no `multi`, with their names, joined by dots."""
    if not isinstance(grader, Multi):
        yield path, grader
        return
    for name, inner in grader.graders.items():
        yield from leaves(inner, f"{path}.{name}" if path else name)


def templates_of(leaf: Leaf) -> Iterator[tuple[str, str]]:
    """Iterate over the templates of a grader, with their fields."""
    match leaf:
        case StringCheck() | TextSimilarity():
            yield "input", leaf.input
            yield "reference", leaf.reference
        case ScoreModel() | LabelModel():
            for number, message in enumerate(leaf.input):
                yield f"input.{number}.content", message.content


def _unknown_type(grader: dict[str, Any]) -> str:
    kind = grader.get("type")
    name = grader.get("name")
    called = f"grader {shown(name)}" if isinstance(name, str) else "a grader"
    if not isinstance(kind, str):
        return f"{called} has no type; there is {', '.join(TYPES)}"
    hint = did_you_mean(kind, TYPES) or f"; there is {', '.join(TYPES)}"
    return f"{called} has the unknown type {shown(kind)}{hint}"


@lru_cache(maxsize=128)
def _problem_of(source: str) -> str:
    """Return why a program has no usable function `grade`. Return an empty string if it has."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"cannot be read: {type(error).__name__}"
    for node in body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "grade":
            return "grade is an async function: make it a plain one"
        if isinstance(node, ast.FunctionDef) and node.name == "grade":
            taken = node.args
            most = len(taken.posonlyargs) + len(taken.args)
            least = most - len(taken.defaults)
            if taken.vararg or least <= 2 <= most:
                return ""
            return f"line {node.lineno}: grade takes {most} arguments, and needs (sample, item)"
    if any("grade" in _bound(node) for node in body):
        return ""
    return "defines no function grade(sample, item)"


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds, other than a function of its own."""
    return {
        name.id
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    } | {
        alias.asname or alias.name
        for alias in getattr(node, "names", [])
        if isinstance(alias, ast.alias)
    }
