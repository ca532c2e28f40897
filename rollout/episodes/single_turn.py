"""Single-turn episodes: one prompt, one answer. Every sampled token is trained."""

import numpy as np

from rollout.episodes import Completion, Sampler
from services.contracts.rows.dataset import Row


class SingleTurnEpisode:
    """Samples all completions of the prompt in one request, so that they share its prefill."""

    async def run(
        self, row: Row, prompt_tokens: list[int], n: int, sampler: Sampler
    ) -> list[Completion]:
        return [
            Completion.of(sample, np.ones(len(sample.token_ids), dtype=np.bool_))
            for sample in await sampler.sample(prompt_tokens, n)
        ]
