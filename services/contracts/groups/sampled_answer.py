"""A completion as text, with what it earned: a trained answer that a run keeps, or one of the
newest answers that were judged."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

TEXT_LIMIT = 4000
"""Characters of a prompt or completion that are kept."""
REFERENCE_LIMIT = 1000
"""Characters of a reference answer that are kept."""


class SampledAnswer(BaseModel):
    """One completion with what it earned."""

    step: int = Field(
        description="The batch it was trained in. 0: it was judged and not trained, or not yet."
    )
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
    reference: str = Field(
        "", description="The reference answer of the row, as text. Empty: it has none."
    )
    tokens: int = Field(description="Length of the completion.")
    reward: float | None = Field(
        description="The verifiers' reward, before `algorithm.shaping`. Null: a verifier broke."
    )
    status: str = Field(description="How the first verifier's scoring ended: `correct`, `wrong`.")
    components: dict[str, float | None] = Field(
        description="Each component of the reward, before its weight."
    )
    reasons: dict[str, str] = Field(
        default_factory=dict,
        description="What each verifier says of the completion, by component: what it compared.",
    )
    advantage: float | None = Field(
        description="The advantage of its tokens. Null: the completion is not in the loss, or its "
        "reward alone does not give it (`gae`, `global_whiten`, `sequence_value`, `reverse_kl`)."
    )
    finish_reason: str = Field(description="`stop`, or why it was truncated: `length`, `deadline`.")
    versions: list[int] = Field(description="Policy versions that sampled it, oldest first.")


def cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text`; of more than `limit` characters its first and last half as many."""
    if len(text) <= limit:
        return text
    half = limit // 2
    dropped = len(text) - 2 * half
    return f"{text[:half]}\n[… {dropped:,} characters dropped …]\n{text[-half:]}"


def reference_text(answer: Any) -> str:
    """A row's reference as text."""
    if answer is None:
        return ""
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return cut(text, REFERENCE_LIMIT)


def extremes(rewards: Sequence[float | None]) -> list[int]:
    """The best and the worst of a group; one if all are the same, none if none has a reward."""
    scored = [(reward, i) for i, reward in enumerate(rewards) if reward is not None]
    if not scored:
        return []
    best, worst = max(scored), min(scored)
    return [best[1]] if best[0] == worst[0] else [best[1], worst[1]]
