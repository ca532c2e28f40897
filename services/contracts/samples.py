"""A completion that was trained, as a person reads it: a line of `samples.jsonl`."""

from pydantic import BaseModel, Field

TEXT_LIMIT = 4000
"""Characters of a prompt or completion that are kept."""


class SampledAnswer(BaseModel):
    """One completion of a trained batch with what it earned."""

    step: int = Field(description="The batch it was trained in.")
    draw: int = Field(description="Its prompt's place in the run's order, as in the audit.")
    row: int = Field(description="Index of the dataset row.")
    prompt: str = Field(
        description="What the policy was given, special tokens too. Of more than "
        f"{TEXT_LIMIT:,} characters the middle is left out; so of the completion."
    )
    completion: str = Field(description="What it said, special tokens too.")
    tokens: int = Field(description="Length of the completion.")
    reward: float | None = Field(
        description="As the verifiers gave it, before `algorithm.shaping`. Null: a verifier broke."
    )
    status: str = Field(description="How the first verifier's scoring ended: `correct`, `wrong`.")
    components: dict[str, float | None] = Field(
        description="What each component of the reward said, before its weight."
    )
    advantage: float | None = Field(
        description="That of each of its tokens. Null: the completion is not in the loss, or its "
        "tokens have advantages of their own (`gae`, `global_whiten`)."
    )
    finish_reason: str = Field(description="`stop`, or what cut it short: `length`, `deadline`.")
    versions: list[int] = Field(description="Policy versions that sampled it, oldest first.")
