"""Scores the canary of each loaded version on a server, and compares it with the learner's values.

The request enters vLLM's queue with priority. If long answers fill vLLM, it may still wait for
seconds.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.weights.canary_verdict import VersionScores, expected, judge, limit_for, prompts
from services.contracts.canary import Floats, unpacked
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger

log = get_logger(__name__)

REMEMBERED = 8
"""Earlier versions that a version is compared with."""
GAPS = 32
"""Versions whose median difference is the usual difference."""


@dataclass
class CanaryCheck:
    """The canary of one server on one run."""

    policy: PolicyClient
    dtype: str
    """The sampler's type (`VLLM.computes_in`)."""
    masks: bool
    """Whether the server returns sampling masks."""
    limit: float | None = None
    """`rollout.canary_limit`."""
    gap: float | None = None
    """Mean absolute difference to the learner in the last scored version, in nats."""
    seconds: float | None = None
    """How long the last scoring took."""
    _known: deque[VersionScores] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))

    async def problem(self, manifest: WeightManifest, first: bool = True) -> str:
        """Return why the server does not serve this version, or '' if it does.

        `first`: whether this is the first score since the load. Later the prefix cache, which the
        load emptied, holds the canary itself, so it is bypassed. Raises VLLMUnavailable.
        """
        canary = manifest.canary
        if canary is None:
            return ""
        began = time.monotonic()
        earlier = [scores for scores in self._known if scores.name != f"version {manifest.tag}"]
        if canary.without_adapter:
            earlier.append(
                VersionScores("the model without its adapter", unpacked(canary.without_adapter))
            )
        limit = limit_for(canary, self.dtype, self.limit, self._gaps)

        name, problem = f"version {manifest.tag}", ""
        try:
            logprobs = await self._scores(prompts(canary), through_cache=first)
            version = VersionScores(name, expected(canary), logprobs, manifest.lineage)
            verdict = judge(version, limit, earlier)
            self.gap = verdict.gap
            if verdict.problem:
                problem = f"its log-probabilities of fixed sequences: {verdict.problem}"
        except ValueError as error:
            # vLLM gave no scores, or the canary is damaged.
            problem = str(error)
        self.seconds = time.monotonic() - began
        if problem:
            return f"vLLM does not serve version {manifest.tag}: {problem}"
        if first:
            self._known.append(version)
            self._gaps.append(self.gap or 0.0)
        return ""

    async def _scores(self, tokens: list[list[int]], through_cache: bool) -> Floats:
        # One request after another would take twice as many steps of vLLM.
        scores = [self.policy.score(sequence, self.masks, through_cache) for sequence in tokens]
        logprobs = await asyncio.gather(*scores)
        return np.concatenate(logprobs)
