"""FLOPs that a sequence costs a model. Pure arithmetic over lengths.

Ranks and micro-batches are balanced by this cost. It counts the forward pass. A backward pass takes
twice as many FLOPs for each part, so the proportions also hold for training.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SequenceCost:
    """FLOPs of a forward pass of one model over sequences of given lengths (in tokens)."""

    weights: int
    """Weights that each token is multiplied with: all but the embedding, the output head and the
    experts that the token is not routed to."""
    head: int = 0
    """Weights of the output head. The head reads only positions before a token in the loss: the
    cost counts it once for each completion token."""
    attention: int = 0
    """Layers × query heads × head size, over the layers with full attention."""
    windowed: int = 0
    """Layers × query heads × head size, over the layers that attend to the last `window` tokens."""
    window: int = 0

    def prompt(self, tokens: int) -> int:
        """FLOPs of a prompt of `tokens` tokens without a completion."""
        return 2 * self.weights * tokens + self._attention(tokens)

    def between(self, start: int, end: int, predicted: int = 0) -> int:
        """FLOPs of the tokens from `start` to `end` of a sequence. `predicted`: the positions that
        go through the output head."""
        return self.prompt(end) - self.prompt(start) + 2 * self.head * predicted

    def completion(self, prompt: int, tokens: int) -> int:
        """FLOPs of a completion of `tokens` after a prompt of `prompt` tokens, without the FLOPs of
        the prompt."""
        linear = 2 * (self.weights + self.head) * tokens
        return linear + self._attention(prompt + tokens) - self._attention(prompt)

    def sequence(self, prompt: int, tokens: int) -> int:
        """FLOPs of a prompt and one completion."""
        return self.prompt(prompt) + self.completion(prompt, tokens)

    def samples(self, prompt: int, completions: Iterable[int], shared: bool) -> int:
        """FLOPs of several samples of one group. `shared`: the prompt is computed once for all
        samples. An empty completion costs 0, because it is not computed."""
        trained = [tokens for tokens in completions if tokens]
        prompts = min(len(trained), 1) if shared else len(trained)
        return prompts * self.prompt(prompt) + sum(self.completion(prompt, t) for t in trained)

    def _attention(self, tokens: int) -> int:
        # Each pair of a query and a key takes 2 FLOPs per number for the score and 2 for the sum.
        within = max(min(tokens, self.window), 0)
        pairs = tokens * (tokens + 1) // 2
        near = within * (within + 1) // 2 + (tokens - within) * within
        return 4 * (self.attention * pairs + self.windowed * near)


TOKENS = SequenceCost(weights=1)
"""The cost for a model of unknown size: each token costs the same."""
