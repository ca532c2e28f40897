"""Requests and answers of OpenAI's `alpha/graders`, in terms of the reward service. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from services.contracts.graders import GraderRun

EXAMPLE: dict[str, JsonValue] = {
    "type": "string_check",
    "name": "same",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}


class GraderToValidate(BaseModel):
    """A grader object."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"example": {"grader": EXAMPLE}})

    grader: Any = Field(None, description="The grader object.")


class GraderToRun(GraderToValidate):
    """A grader object, and an answer to grade."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {"grader": EXAMPLE, "item": {"answer": "62"}, "model_sample": "62"}
        },
    )

    model_sample: Any = Field(None, description="The answer: `sample.output_text`.")
    item: Any = Field(None, description="The fields of `item`.")


class ValidatedGrader(BaseModel):
    """A grader that can be used."""

    grader: dict[str, Any] = Field(description="The grader object, as it was sent.")


class GraderErrors(BaseModel):
    """What kept a grader from a score."""

    formula_parse_error: bool = Field(description="`calculate_output` has no value.")
    sample_parse_error: bool = Field(
        description="The answer is not JSON, or lacks a field that a template names."
    )
    truncated_observation_error: bool = Field(description="Never.")
    unresponsive_reward_error: bool = Field(description="Not graded in time.")
    invalid_variable_error: bool = Field(description="`item` lacks a field of a template.")
    other_error: bool = Field(description="Anything else.")
    python_grader_server_error: bool = Field(description="The program hit a limit.")
    python_grader_server_error_type: str | None = Field(description="The limit.")
    python_grader_runtime_error: bool = Field(description="`grade` failed.")
    python_grader_runtime_error_details: str | None = Field(description="How.")
    model_grader_server_error: bool = Field(description="The model's endpoint failed.")
    model_grader_refusal_error: bool = Field(description="The model refused.")
    model_grader_parse_error: bool = Field(description="The model's reply has no score.")
    model_grader_server_error_details: str | None = Field(description="How it failed.")


class GraderMetadata(BaseModel):
    """How a grader was run."""

    name: str = Field(description="The grader's name.")
    type: str = Field(description="The grader's type.")
    errors: GraderErrors = Field(description="What kept it from a score.")
    execution_time: float = Field(description="Seconds.")
    scores: dict[str, Any] = Field(description="Scores by grader.")
    token_usage: int | None = Field(description="Tokens of the models that were asked.")
    sampled_model_name: str | None = Field(description="The model that was asked, if it is one.")


class GraderRunAnswer(BaseModel):
    """The outcome of a grader."""

    reward: float = Field(description="The score; 0 with an error.")
    metadata: GraderMetadata = Field(description="How it was run.")
    sub_rewards: dict[str, Any] = Field(description="Scores of the graders of a `multi`.")
    model_grader_token_usage_per_model: dict[str, Any] = Field(description="Tokens by model.")


def answer_of(grader: Mapping[str, Any], run: GraderRun) -> GraderRunAnswer:
    """Return an outcome as OpenAI's API gives it."""
    flags = run.flags
    details = {
        "python_grader_server_error_type": run.kind or None,
        "python_grader_runtime_error_details": flags.get("python_grader_runtime_error"),
        "model_grader_server_error_details": flags.get("model_grader_server_error"),
    }
    fields = GraderErrors.model_fields
    errors = {name: name in flags for name in fields if name not in details}
    reward = 0.0 if run.score is None else run.score
    name, models = str(grader["name"]), [*run.tokens]
    scores = run.scores or ({} if run.score is None else {name: reward})
    return GraderRunAnswer(
        reward=reward,
        metadata=GraderMetadata(
            name=name,
            type=str(grader["type"]),
            errors=GraderErrors.model_validate(errors | details),
            execution_time=run.seconds,
            scores=scores,
            token_usage=sum(run.tokens.values()) if models else None,
            sampled_model_name=models[0] if len(models) == 1 else None,
        ),
        sub_rewards=run.scores,
        model_grader_token_usage_per_model=run.tokens,
    )


def place_in(grader: Any, path: str) -> str:
    """Return where in a request a problem is, for a path of the reward service. That path also has
    the types of graders, which are no keys of the request."""
    value, kept = grader, ["grader"]
    for step in path.removeprefix("params").removeprefix(".grader").split("."):
        if not step:
            continue
        if isinstance(value, dict) and step not in value and value.get("type") == step:
            continue
        kept.append(step)
        value = _below(value, step)
    return ".".join(kept)


def _below(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        return value[int(step)]
    return None
