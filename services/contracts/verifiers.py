"""`/v1/verifiers` of the reward service and of the gateway: verifiers, how one is added, and how an
answer is scored."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from services.contracts.scores import ScoreResult

LARGEST_SOURCE = 1 << 20
"""Characters of a verifier's file."""


class VerifierInfo(BaseModel):
    """One verifier that items may name."""

    name: str = Field(description="What an item's `verifier` takes.")
    description: str = Field(description="What it calls correct.")
    params: dict[str, Any] = Field(description="JSON Schema of an item's `params`.")
    available: bool = Field(description="Whether it can be used on this machine.")
    notice: str = Field(
        description="What to know about its use on this machine, or why it cannot be used."
    )
    versions: list[int] = Field(
        default=[],
        description="The versions of a verifier that an admin has added: NAME is the last one, "
        "NAME@VERSION any of them. Empty: it came with the installation.",
    )


class VerifierList(BaseModel):
    """All verifiers of this service, by name."""

    verifiers: list[VerifierInfo] = Field(description="Built-in, installed and own ones.")


class NewVerifier(BaseModel):
    """A Python file with a verifier: a class, or a plain function."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "file": "short.py",
                "source": "def reward(completion, answer):\n    return answer in completion\n",
            }
        },
    )

    file: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,99}\.py$", description="The file's name, for errors."
    )
    source: str = Field(max_length=LARGEST_SOURCE, description="The file's text.")
    object: str | None = Field(
        None,
        pattern=r"^[A-Za-z_]\w{0,99}$",
        description="The class or function in it. Default: the only one.",
    )
    name: str | None = Field(
        None,
        pattern=r"^[a-z][a-z0-9_-]{0,47}$",
        description="The verifier's name. Default: its own, or the file's.",
    )


class TestResult(BaseModel):
    """How a test in a verifier's file ended."""

    __test__ = False

    name: str = Field(description="The function `test_…`.")
    problem: str | None = Field(description="Why it failed. Null: it passed.")


class MadeVerifier(BaseModel):
    """A version of a verifier that has been added."""

    name: str = Field(description="What an item's `verifier` takes.")
    version: int = Field(description="NAME@VERSION names this version for ever.")
    object: str = Field(description="The class or function.")
    description: str = Field(description="In words of the file.")
    tests: list[TestResult] = Field(description="Tests in the file: all have passed.")


class AnswerToScore(BaseModel):
    """An answer, and the row or the reference that it is scored by."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"completion": "27 + 35 = 62", "answer": "62"}},
    )

    completion: str = Field(description="The answer to score.")
    dataset: str | None = Field(None, description="The dataset of the row: a name or an id.")
    row: int = Field(0, ge=0, description="The row of the dataset.")
    prompt: str | list[dict[str, Any]] | None = Field(
        None, description="The prompt. Default: the row's."
    )
    answer: Any = Field(None, description="The reference. Default: the row's.")
    params: dict[str, Any] = Field(default={}, description="The verifier's parameters.")


class ScoredAnswer(ScoreResult):
    """The verdict on an answer, and what it was compared with."""

    prompt: str | list[dict[str, Any]] = Field(description="As the verifier saw it.")
    answer: Any = Field(description="The reference, as the verifier saw it.")
