"""`POST /v1/graders/run` of the reward service: one answer, graded by one grader object."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class GraderRunRequest(BaseModel):
    """An answer, and the grader."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "params": {
                    "grader": {
                        "type": "string_check",
                        "name": "same",
                        "input": "{{ sample.output_text }}",
                        "reference": "{{ item.answer }}",
                        "operation": "eq",
                    }
                },
                "item": {"answer": "62"},
                "sample": "62",
            }
        },
    )

    params: dict[str, Any] = Field(description="The parameters of the verifier `grader`.")
    item: dict[str, Any] = Field(default={}, description="The fields of `item`.")
    sample: str = Field(description="The answer: `sample.output_text`.")


class GraderRun(BaseModel):
    """The outcome of a grader."""

    score: float | None = Field(description="Null: an error, which `flags` names.")
    detail: str = Field(description="What was compared, or what broke.")
    scores: dict[str, float] = Field(
        description="Scores of the graders of a `multi`, by their names, joined by dots."
    )
    flags: dict[str, str] = Field(
        description="Errors by OpenAI's names, and what happened. With a score, the answer is to "
        "blame."
    )
    kind: str = Field(description="The limit that a Python grader hit.")
    is_late: bool = Field(description="Whether a limit of time was hit.")
    tokens: dict[str, int] = Field(description="Tokens by the models that were asked.")
    seconds: float = Field(description="How long the grader took.")
