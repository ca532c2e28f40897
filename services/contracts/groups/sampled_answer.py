"""A trained completion as text: a line of `samples.jsonl`."""

from pydantic import BaseModel, Field

TEXT_LIMIT = 4000
"""Characters of a prompt or completion that are kept."""


class SampledAnswer(BaseModel):
    """One completion of a trained batch with what it earned."""

    step: int = Field(description="The batch it was trained in.")
    task: int = Field(description="Its prompt's place in the run's order, as in the audit.")
    row: int = Field(description="Index of the dataset row.")
    dataset: str = Field(
        "", description="Which dataset of a mixture that is; empty: the run has one."
    )
    own: str | None = Field(
        None,
        description="Of a prompt that a client brought in place of that row: the name that it gave "
        "to its group, or empty.",
    )
    prompt: str = Field(
        description="The policy's input with its special tokens. Of more than "
        f"{TEXT_LIMIT:,} characters the middle is omitted, as in the completion."
    )
    completion: str = Field(description="The answer with its special tokens.")
    tokens: int = Field(description="Length of the completion.")
    reward: float | None = Field(
        description="The verifiers' reward, before `algorithm.shaping`. Null: a verifier broke."
    )
    status: str = Field(description="How the first verifier's scoring ended: `correct`, `wrong`.")
    components: dict[str, float | None] = Field(
        description="Each component of the reward, before its weight."
    )
    advantage: float | None = Field(
        description="The advantage of its tokens. Null: the completion is not in the loss, or its "
        "reward alone does not give it (`gae`, `global_whiten`, `sequence_value`, `reverse_kl`)."
    )
    finish_reason: str = Field(description="`stop`, or why it was truncated: `length`, `deadline`.")
    versions: list[int] = Field(description="Policy versions that sampled it, oldest first.")
