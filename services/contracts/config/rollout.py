"""How rollout workers sample."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from services.contracts.config.base import Section
from services.contracts.config.episodes import Episode, SingleTurn
from services.contracts.config.vllm import VLLM

MOST_SCHEMA = 64 << 10
"""Characters of a JSON schema."""
PublishedAs = Literal["auto", "full"]


class Sampling(Section):
    """How rollout workers sample."""

    temperature: float = Field(1.0, gt=0, le=10)
    """Sampling temperature. The learner computes log-probabilities at the same."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the fewest likeliest tokens with this total probability. 1 is off."""
    top_k: int = Field(0, ge=0, le=1000)
    """Sample from this many likeliest tokens. 0 is off. Each token carries its candidates (its
    sampling mask: with 50, 55 to 90 bytes), and the learner computes log-probabilities over
    them."""
    max_tokens: int = Field(64, ge=1)
    """Longest completion, in tokens."""
    ignore_eos: bool = False
    """Sample max_tokens, past any end of sequence (benchmarks)."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = []
    """More tokens that end a completion, besides the tokenizer's end of sequence."""
    json_schema: dict[str, Any] | None = None
    """JSON schema that each completion keeps to: vLLM samples only tokens that the schema allows.
    Needs `top_k`, because each token then carries its candidates. For `rollout.episode:
    single_turn`."""
    seed: int | None = Field(None, ge=0)
    """Gives each sample of a task a fixed seed, so that a synchronous run can be repeated. Slower:
    vLLM then samples row by row. Default: no seeds."""

    @property
    def cuts(self) -> bool:
        """Whether tokens are sampled from less than the vocabulary."""
        return self.top_k > 0

    @field_validator("top_k", mode="before")
    @classmethod
    def _all(cls, top_k: Any) -> Any:
        if top_k == -1:
            raise ValueError("-1 stands for all tokens in other systems: set it to 0")
        return top_k

    @model_validator(mode="after")
    def _bounded(self) -> "Sampling":
        if self.top_p != 1 and self.top_k == 0:
            raise ValueError(
                f"top_p {self.top_p:g} may leave nearly the whole vocabulary, and each token "
                "carries its candidates: set top_k as well, for example to 100, or leave top_p at 1"
            )
        return self

    @model_validator(mode="after")
    def _masked(self) -> "Sampling":
        if self.json_schema is None:
            return self
        if self.top_k == 0:
            raise ValueError(
                "json_schema leaves few candidates for a token, and without top_k the learner "
                "would take probabilities over the whole vocabulary: set top_k, for example to 50"
            )
        if self.ignore_eos:
            raise ValueError(
                "json_schema says where a completion ends, and ignore_eos samples past that: leave "
                "one of the two out"
            )
        if len(json.dumps(self.json_schema)) > MOST_SCHEMA:
            raise ValueError(f"json_schema has at most {MOST_SCHEMA:,} characters: shorten it")
        return self

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Settings that are allowed but probably a mistake: (key below `sampling`, sentence)."""
        if self.ignore_eos and self.stop_token_ids:
            yield (
                "stop_token_ids",
                "these tokens end completions, but with ignore_eos the end of sequence does not, "
                "so the policy cannot learn to end there: leave ignore_eos out",
            )


class Rollout(Section):
    """How groups are leased and generated."""

    max_staleness: int = Field(1, ge=0)
    """Versions between sampling a token and training on it, at most (η). 0: synchronous."""
    lease_seconds: float = Field(60, ge=2, le=30 * 86_400)
    """A worker without progress for this long loses its leases to others."""
    update_mode: Literal["keep", "abort", "wait"] = "keep"
    """Requests in flight at a weight update. keep: they continue with their KV cache. abort: they
    stop, and the new version continues their text. wait: they finish before the update, and no new
    ones start."""
    weights: PublishedAs = "auto"
    """The weights that the learner publishes after a step. auto: only the changed weights (a delta)
    if they are bfloat16 and the delta is smaller; from time to time all weights. full: always all
    weights, which saves each rank of the learner 2 bytes of memory for each weight that it
    holds."""
    straggler_deadline: float | None = Field(None, gt=0)
    """Seconds after its lease when a group that still generates is stopped; those in which vLLM
    sleeps do not count (`vllm.sleeps`). Default: never."""
    at_deadline: Literal["complete", "release"] = "complete"
    """How a group ends at `straggler_deadline`. complete: its samples are truncated there, as at
    max_tokens. release: the task is leased again, and dropped the third time (`too_slow`). A group
    with a sample that has no token yet is always released."""
    stragglers: Literal["wait", "resample"] = "wait"
    """An unfinished group that would be too stale for the next batch. wait: the learner waits for
    it. resample: it does not, and the prompt is sampled again, and dropped the third time
    (`too_slow`). That is faster if `max_staleness` is small and few answers are long, and trains
    less on long answers."""
    groups_in_flight: int | None = Field(None, ge=1)
    """Groups that one worker generates at once; default: enough for as many completions as vLLM
    runs at once, and a quarter more, which wait inside vLLM."""
    episode: Episode = SingleTurn()
    """How a completion is made. `episode: calculator` is short for `episode: {type: calculator}`,
    any other name for `{type: own, name: NAME}`."""
    canary_limit: float | None = Field(None, gt=0)
    """After each weight update vLLM scores some fixed sequences. It serves the wrong weights if its
    log-probabilities differ from the learner's by more nats than this, on average. Default: 0.005
    where both compute in float32; else eight times what is usual in this run, and at most 0.3 (more
    for deep models)."""
    vllm: VLLM = VLLM()
    """Options of the vLLM server."""
    keep_share: Literal["auto"] | Annotated[float, Field(ge=0, le=1)] = "auto"
    """Share of the trained groups whose answers are kept with their tokens, log-probabilities and
    rewards, for `headrace rollouts`, `headrace samples` and the page. auto: all groups of a step up
    to 524,288 tokens (prompts included), and of a larger step an even share with about as many
    tokens. A step then takes at most about 5 MB of the data volume: 7.5 GB a day with a step
    a minute. 0: none."""
    stream_bytes: int = Field(1 << 30, ge=1 << 20)
    """Bytes of the run's finished groups in Redis above which workers keep theirs until the learner
    has made room. Best at four batches or more."""
