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
from rollout.vllm.weights.canary_verdict import VersionScores, expected, judge, limit_for
from services.contracts.canary import Canary, Floats, sequences, unpacked
from services.contracts.weights import WeightManifest

REMEMBERED = 8
"""Earlier versions that a version is compared with."""
GAPS = 32
"""Versions whose median difference is the usual difference."""


@dataclass
class CanaryCheck:
    policy: PolicyClient
    dtype: str
    """The sampler's type (`VLLM.computes_in`)."""
    masks: bool
    """Whether the server returns sampling masks."""
    limit: float | None = None
    """`rollout.canary_limit`."""
    layers: int = 0
    """Layers of the model."""
    gap: float | None = None
    """Mean absolute difference to the learner in the last scored version, in nats."""
    seconds: float | None = None
    """How long the last scoring took."""
    _known: deque[VersionScores] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))

    async def problem(self, manifest: WeightManifest) -> str:
        """Return why the server does not serve this version, or '' if it does. Its prefix cache
        must be empty, as after a load and a sleep. Raises VLLMUnavailable."""
        if manifest.canary is None:
            return ""
        began = time.monotonic()
        try:
            problem = await self._problem(manifest, manifest.canary)
        except ValueError as error:
            # vLLM gave no scores, or the canary is damaged.
            problem = str(error)
        self.seconds = time.monotonic() - began
        return problem and f"vLLM does not serve version {manifest.tag}: {problem}"

    async def _problem(self, manifest: WeightManifest, canary: Canary) -> str:
        name = f"version {manifest.tag}"
        version = VersionScores(
            name, expected(canary), await self._scores(canary), manifest.lineage
        )
        earlier = [scores for scores in self._known if scores.name != name]
        if canary.without_adapter:
            blank = unpacked(canary.without_adapter)
            earlier.append(VersionScores("the model without its adapter", blank))
        limit = limit_for(canary, self.dtype, self.limit, self._gaps, self.layers)
        self.gap, problem = judge(version, limit, earlier)
        if problem:
            return f"its log-probabilities of fixed sequences: {problem}"
        self._known.append(version)
        self._gaps.append(self.gap)
        return ""

    async def _scores(self, canary: Canary) -> Floats:
        # One request after another would take twice as many steps of vLLM.
        prompts = sequences(canary.vocabulary, canary.longest)
        scores = [self.policy.score(prompt, self.masks) for prompt in prompts]
        return np.concatenate(await asyncio.gather(*scores))
