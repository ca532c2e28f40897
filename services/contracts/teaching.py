"""The reward service's HTTP contract for teachers: `POST /v1/teachers/score` and `…/text`.

A teacher scores tokens, not text: its vocabulary has to give the ids that the policy's gives.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Token = Annotated[int, Field(ge=0)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    teacher: str = Field(description="A name that the operator has given a vLLM server.")
    model: str | None = Field(
        None, description="What that server calls the model; null: its only one."
    )


class TeacherScoreRequest(_Asked):
    """One completion, to be scored by a teacher token by token."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"teacher": "big", "prompt": [1, 15, 8], "completion": [9, 4, 2]}
        }
    )

    prompt: list[Token] = Field(min_length=1, description="Token ids of the prompt.")
    completion: list[Token] = Field(min_length=1, description="Token ids of the completion.")


class TeacherScores(BaseModel):
    """The teacher's scores of a completion."""

    logprobs: list[float] = Field(
        description="The log-probability of each token of the completion, after the prompt and the "
        "tokens before it, at temperature 1."
    )


class TeacherTextRequest(_Asked):
    """Tokens whose text is compared with the policy's."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"teacher": "big", "tokens": [0, 1, 2, 3]}}
    )

    tokens: list[Token] = Field(max_length=1 << 21, description="Token ids.")


class TeacherText(BaseModel):
    """The text that the teacher's tokenizer decodes from token ids."""

    text: str = Field(description="Special tokens included.")
