"""A rollout: a trained answer with its tokens, as a run keeps it and the API shows it. Pure."""

from enum import StrEnum

from pydantic import BaseModel, Field

from services.contracts.scores import ScoreStatus

AUTO_TOKENS = 1 << 19
"""Trained tokens of a step that `rollout.keep_share: auto` keeps, prompts included."""
TOKEN_BYTES = 10
"""Bytes that a kept token takes on the disk, about."""
EXCERPT = 400
"""Characters of a completion in a list of rollouts."""


class RolloutStatus(StrEnum):
    """A filter of rollouts: how the scoring ended, or how the answer was treated."""

    CORRECT = ScoreStatus.CORRECT
    WRONG = ScoreStatus.WRONG
    PARTIAL = ScoreStatus.PARTIAL
    SCORED = ScoreStatus.SCORED
    NO_ANSWER = ScoreStatus.NO_ANSWER
    UNPARSABLE = ScoreStatus.UNPARSABLE
    TIMEOUT = ScoreStatus.TIMEOUT
    ERROR = ScoreStatus.ERROR
    TRUNCATED = "truncated"
    UNTRAINED = "untrained"


class RolloutSummary(BaseModel):
    """A trained answer in a list, without its tokens."""

    step: int = Field(description="The batch that it was trained in.", examples=[12])
    group: int = Field(
        description="The task of its group: its prompt's place in the run's order.", examples=[371]
    )
    sample: int = Field(description="Its number within the group, from 0.", examples=[3])
    row: int = Field(description="Index of the dataset row.", examples=[55])
    dataset: str = Field(description="The row's dataset in a mixture; empty without one.")
    own: str | None = Field(
        description="The client's name, which may be empty, of a prompt that a client brought "
        "instead of that row. Null: the prompt is the row's."
    )
    reward: float | None = Field(
        description="The verifiers' reward, before `algorithm.shaping`. Null: a verifier broke.",
        examples=[1.0],
    )
    advantage: float | None = Field(
        description="The advantage of its tokens. Null: it is not in the loss, or each token has "
        "its own.",
        examples=[0.375],
    )
    components: dict[str, float | None] = Field(
        description="Each component of the reward, before its weight.", examples=[{"math": 1.0}]
    )
    status: str = Field(
        description="How the first verifier's scoring ended: `correct`, `wrong`.",
        examples=["correct"],
    )
    finish_reason: str = Field(
        description="`stop`, or why it was truncated: `length`, `deadline`.", examples=["stop"]
    )
    trained: bool = Field(description="Whether any of its tokens are in the loss.")
    length: int = Field(description="Tokens of the completion.", examples=[212])
    turns: int | None = Field(
        description="Turns of an agent's session or of an episode with tools; null without turns."
    )
    versions: list[int] = Field(
        description="Policy versions that sampled it, oldest first.", examples=[[11]]
    )
    prompt: str = Field(
        description=f"The policy's input. A text over {EXCERPT} characters loses its middle."
    )
    completion: str = Field(
        description=f"The answer, or {EXCERPT} characters of it: its beginning and its end, or "
        "the surroundings of the `text` that was searched for."
    )


class TokenSpan(BaseModel):
    """Tokens of a completion that have one origin."""

    start: int = Field(description="Its first token.", examples=[0])
    end: int = Field(description="The token after its last one.", examples=[212])
    version: int | None = Field(
        description="The policy version that sampled these tokens. Null: the policy did not sample "
        "them: output of a tool, a user's turn, or tokens that were forced.",
        examples=[11],
    )


class TokenBranch(BaseModel):
    """A place in a completion whose tokens do not continue the tokens before them."""

    start: int = Field(description="The branch's first token, counted in the completion.")
    after: int = Field(
        description="How many tokens of prompt and completion lie up to the place that the branch "
        "continues."
    )


class RolloutSample(BaseModel):
    """A trained answer with its tokens. A list of numbers has an entry for each token of the
    completion."""

    sample: int = Field(description="Its number within the group, from 0.")
    reward: float | None = Field(description="The verifiers' reward. Null: a verifier broke.")
    advantage: float | None = Field(
        description="The advantage of its tokens. Null: it is not in the loss, or each token has "
        "its own (`advantages`)."
    )
    components: dict[str, float | None] = Field(
        description="Each component of the reward, before its weight."
    )
    reasons: dict[str, str] = Field(
        description="What each verifier says of the completion, by component."
    )
    status: str = Field(description="How the first verifier's scoring ended.")
    finish_reason: str = Field(description="`stop`, or why it was truncated.")
    trained: bool = Field(description="Whether any of its tokens are in the loss.")
    length: int = Field(description="Tokens of the completion.")
    turns: int | None = Field(description="Turns of an agent's session, or of an episode.")
    completion: str = Field(description="The whole answer with its special tokens.")
    tokens: list[str] | None = Field(
        description="The text of each token; together they are the completion. A character of "
        "several tokens is in the last of them. Null: the file of token texts cannot be read."
    )
    token_ids: list[int] = Field(description="The tokens' ids.")
    sampler_logprobs: list[float | None] = Field(
        description="The sampler's log-probability of each token, in nats. Null: the policy did "
        "not sample the token."
    )
    learner_logprobs: list[float | None] | None = Field(
        description="The learner's log-probability of each token, in its first pass over the "
        "token's minibatch. Null: the token is not in the loss. Null for all: no pass was made."
    )
    entropy: list[float | None] | None = Field(
        description="Entropy of the learner's distribution that each token is from, in nats."
    )
    advantages: list[float | None] | None = Field(
        description="The advantage of each token, from estimators that give each token its own."
    )
    versions: list[TokenSpan] = Field(
        description="Who made which tokens, in order; the spans cover the completion."
    )
    branches: list[TokenBranch] = Field(
        description="Where an agent's session did not continue its tokens; empty without branches."
    )


class RolloutGroup(BaseModel):
    """A trained group: one prompt and its answers."""

    run: str = Field(description="The run's id.")
    step: int = Field(description="The batch that it was trained in.")
    group: int = Field(description="The group's task.")
    row: int = Field(description="Index of the dataset row.")
    dataset: str = Field(description="The row's dataset in a mixture; empty without one.")
    own: str | None = Field(description="The name of a prompt that a client brought, or null.")
    reference: str = Field(description="The row's reference answer as text; empty without one.")
    prompt: str = Field(description="The policy's input with its special tokens.")
    prompt_tokens: list[str] | None = Field(description="The text of each token of the prompt.")
    prompt_token_ids: list[int] = Field(description="The ids of the prompt's tokens.")
    worker: str = Field(description="The rollout worker that sampled it.")
    generated_at: float = Field(description="When its last token was sampled; Unix seconds.")
    samples: list[RolloutSample] = Field(description="Its answers, by number.")
    damaged: list[str] = Field(
        description="Files of this step that cannot be read; answers in them are missing here."
    )
