"""An evaluation: the rows of one held-out set, answered by exactly one version of a run's weights.

The learner requests it. Workers lease its rows, each until it is answered once. The learner moves
the answers from Redis to files, and reports the outcome.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from services.contracts.config.evaluation import ResolvedSet
from services.contracts.weights import WeightManifest, decode_manifest

EvaluationState = Literal["waiting", "open", "done", "failed", "cancelled"]


class EvaluationRequest(BaseModel):
    """A request for an evaluation, with all that a worker needs to take part."""

    id: str
    """Unique in its run: `000020-gsm8k-test`. A repeated request has the same id."""
    step: int
    """After which it was due."""
    version: str
    """The version that answers, like `9f3a1c:20`."""
    manifest: str
    """Its manifest (JSON), so that every worker can load it, whatever came after it."""
    set: ResolvedSet
    asked: float
    """Unix seconds."""
    left: list[int] | None = None
    """Rows that have no answers yet; None: all. Those of the others come from the run that this one
    resumes."""

    @property
    def rows(self) -> int:
        """Rows to answer."""
        return self.set.rows

    @property
    def weights(self) -> WeightManifest:
        """The manifest. Raises as `decode_manifest`."""
        return decode_manifest(self.manifest.encode())


class AnsweredSample(BaseModel):
    """One completion of a row."""

    text: str = Field(description="The answer, without special tokens.")
    tokens: int = Field(description="Its length.")
    truncated: bool = Field(description="Whether it reached its token limit before it ended.")
    reward: float | None = Field(description="Null: a verifier broke.")
    status: str = Field(description="How the first verifier's scoring ended: `correct`, `wrong`.")
    components: dict[str, float | None] = Field(
        description="Each component of the reward, before its weight."
    )
    reasons: dict[str, str] = Field(
        default_factory=dict,
        description="What each verifier says of the answer, by component: what it compared.",
    )


class AnsweredRow(BaseModel):
    """A row of a held-out set with its answers."""

    row: int = Field(description="Index of the dataset row.")
    category: str | None = Field(None, description="Its value in the column `category`.")
    prompt: str = Field(description="What was asked, as text.")
    reference: Any = Field(None, description="The reference answer of the row.")
    samples: list[AnsweredSample] = Field(description="Empty where the row could not be answered.")
    error: str = Field("", description="Why it could not.")


class EvaluationRecord(BaseModel):
    """An evaluation as the API shows it."""

    id: str = Field(description="Unique in its run.")
    run: str = Field(description="The run's id.")
    name: str = Field(description="What metrics call the held-out set.")
    dataset: str = Field(description="The dataset's name.")
    dataset_id: str | None = Field(
        None, description="The dataset's id: another one may have its name since. Null: not known."
    )
    step: int = Field(description="The step after which it was due.")
    version: str = Field(description="The version that answers, as LINEAGE:NUMBER.")
    samples: int = Field(description="Completions per row.")
    temperature: float | None = Field(
        None, description="Their temperature. Null: from before it was noted."
    )
    rows: int = Field(description="Rows to answer.")
    answered: int = Field(0, description="Rows that have their answers.")
    state: EvaluationState = Field(
        description="`waiting` for another one, `open`, `done`, `failed`, or `cancelled` with the "
        "run."
    )
    reason: str = Field("", description="Why it failed.")
    asked: float = Field(description="Unix seconds.")
    finished: float | None = Field(None, description="Unix seconds.")
    metrics: dict[str, float] = Field(
        default_factory=dict, description="Once it is done, by the names of docs/metrics.md."
    )
    categories: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="The same for each category."
    )


def record_of(run: str, request: EvaluationRequest, state: EvaluationState) -> EvaluationRecord:
    """The record of a request without an outcome."""
    return EvaluationRecord(
        id=request.id,
        run=run,
        name=request.set.name,
        dataset=request.set.dataset_name,
        dataset_id=request.set.dataset,
        step=request.step,
        version=request.version,
        samples=request.set.samples,
        temperature=request.set.sampling.temperature,
        rows=request.rows,
        state=state,
        asked=request.asked,
    )
