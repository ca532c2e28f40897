"""The reward service's HTTP contract: `POST /v1/score` and `POST /v1/verifiers/check`.

`reward` is null for `error` alone: something on our side broke, and the trajectory is masked from
the loss. A failure that the answer itself caused gets a number.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ScoreStatus(StrEnum):
    """How one scoring ended."""

    CORRECT = "correct"
    WRONG = "wrong"
    PARTIAL = "partial"
    SCORED = "scored"
    NO_ANSWER = "no_answer"
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    ERROR = "error"


VERDICTS = frozenset(
    {
        ScoreStatus.CORRECT,
        ScoreStatus.WRONG,
        ScoreStatus.PARTIAL,
        ScoreStatus.NO_ANSWER,
        ScoreStatus.UNPARSABLE,
    }
)
"""The outcomes of a verifier that compares answers. A verifier that only rates answers reports
`scored`, and the run then has no accuracy."""


MOST_REWARD = 1e12
"""The largest magnitude of a reward, a component or the score of a part. The gradient is
proportional to the reward. The gradient's norm, in float32, overflows at 1.8e19, and such an update
is skipped. A running mean of larger rewards would stay beyond all later rewards."""


def is_reward(value: Any) -> bool:
    """Whether this is a number that can be trained with."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= MOST_REWARD


class ScoreItem(BaseModel):
    """One completion to score by one verifier."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(description="Comes back with the result; unique within the request.")
    verifier: str = Field(description="A name that `GET /v1/verifiers` lists.")
    prompt: str | list[dict[str, Any]] = Field(
        "", description="What the policy was asked: text, or chat messages."
    )
    completion: str = Field(description="What the policy answered.")
    prefill: str = Field(
        "",
        max_length=1000,
        description="The beginning of the answer that the prompt already has, because its chat "
        "template writes it: `<think>\\n`, or an empty thought. Not part of `completion`.",
    )
    truncated: bool = Field(
        False,
        description="The completion was cut off at its length limit or deadline. `math` and "
        "`choice` then read only an answer that is marked.",
    )
    answer: Any = Field(None, description="The reference from the dataset row, as it stands there.")
    params: dict[str, Any] = Field(
        default_factory=dict, description="The verifier's parameters; see its JSON schema."
    )
    columns: dict[str, Any] = Field(
        default_factory=dict,
        description="The dataset row's other columns by name, for verifiers that need more than "
        "the answer.",
    )
    row: int | None = Field(
        None, ge=0, description="Index of the dataset row; an `error` names it in its detail."
    )


class ScoreRequest(BaseModel):
    """Items are independent of each other; results come back in their order."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "items": [
                    {
                        "id": "0",
                        "verifier": "math",
                        "completion": "27 + 35 = 62, so the answer is \\boxed{62}.",
                        "answer": "62",
                    }
                ]
            }
        },
    )

    items: list[ScoreItem] = Field(max_length=4096, description="What to score.")


class PartScore(BaseModel):
    """The score of one part of a completion."""

    model_config = ConfigDict(allow_inf_nan=False)

    end: int = Field(
        ge=0, description="Where it ends: characters (Unicode code points) of the completion."
    )
    score: float = Field(
        description="What it earned, or the score of the completion up to there, depending on "
        "`dense` of the run's reward."
    )


class ScoreResult(BaseModel):
    """The outcome for one item."""

    id: str = Field(description="The item's.")
    status: ScoreStatus = Field(description="How the scoring ended.")
    reward: float | None = Field(description="Null for status `error` alone.")
    components: dict[str, float] = Field(
        default_factory=dict, description="Named parts of the reward, for the metrics."
    )
    parts: list[PartScore] = Field(
        default_factory=list,
        description="Scores of parts of the completion, in its order, for runs whose reward is "
        "dense; `reward` is of the whole.",
    )
    detail: str = Field("", description="A sentence for a person: what was compared, what broke.")

    @model_validator(mode="after")
    def _null_means_error(self) -> "ScoreResult":
        if (self.reward is None) != (self.status is ScoreStatus.ERROR):
            raise ValueError(f"reward {self.reward} does not go with status {self.status}")
        return self


class ScoreResponse(BaseModel):
    """Results in the order of the request's items."""

    results: list[ScoreResult] = Field(description="One for each item.")


MOST_ROWS = 1024
"""Rows of one use in one check."""


class ReferenceRow(BaseModel):
    """The part of a dataset row that a verifier compares with."""

    model_config = ConfigDict(extra="forbid")

    answer: Any = Field(None, description="The reference, as an item's `answer` holds it.")
    columns: dict[str, Any] = Field(
        default_factory=dict, description="The row's other columns, as an item's `columns`."
    )


class Use(BaseModel):
    """A verifier as a run names it."""

    model_config = ConfigDict(extra="forbid")

    verifier: str = Field(description="A name that `GET /v1/verifiers` lists.")
    params: dict[str, Any] = Field(default_factory=dict, description="The verifier's parameters.")
    rows: list[ReferenceRow] = Field(
        default_factory=list,
        max_length=MOST_ROWS,
        description="Rows of the dataset whose references are checked with this verifier.",
    )


class CheckRequest(BaseModel):
    """Uses of verifiers, and references that they will score with, to be checked first."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"uses": [{"verifier": "math", "params": {"strict": True}}]}},
    )

    uses: list[Use] = Field(max_length=1024, description="What to check.")
    teacher: str | None = Field(None, description="A teacher that has to be there, by name.")


class UseProblem(BaseModel):
    """One thing that is wrong."""

    use: int = Field(description="Index of the use.")
    path: str = Field(description="What is wrong in it: `verifier`, `params.strict`, `rows.2`.")
    row: int | None = Field(
        None, description="Index into the use's `rows`; null if the use itself is wrong."
    )
    message: str = Field(description="A sentence that says why, and the way out.")


class CheckResponse(BaseModel):
    """The problems of the uses; empty if all uses are valid."""

    problems: list[UseProblem] = Field(description="In the order of the uses.")
    remarks: list[UseProblem] = Field(
        default_factory=list,
        description="References that can be read, and yet may be from the wrong column: each "
        "`message` follows the words `12 of 80 references of sums`.",
    )
    takes_any: list[int] = Field(
        default_factory=list,
        description="Indices of the uses that read no reference of a row: their verifier has none, "
        "or a parameter replaces it.",
    )
    own_verifier_uses: list[int] = Field(
        default_factory=list,
        description="Indices of the uses whose verifier does not come with Headrace. Its code may "
        "change at any time, so a result for it is not kept.",
    )
    teacher: str | None = Field(None, description="What is wrong with the teacher.")
