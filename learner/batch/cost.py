"""What a sequence costs a model, in FLOPs. Pure arithmetic over lengths.

Ranks and micro-batches are balanced by it. Counted is a forward pass; a backward pass takes twice
as many FLOPs for each part, so that the proportions are those of training, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SequenceCost:
    """FLOPs of a forward pass of one model over sequences of given lengths (in tokens)."""

    weights: int
    """That each token is multiplied with: without embedding and output head, and of the experts
    only those that it goes to."""
    head: int = 0
    """Weights of the output head. It reads only what precedes a token in the loss: the cost counts
    it for each token of a completion."""
    attention: int = 0
    """Layers × query heads × size of a head, of the layers that attend to all tokens before."""
    windowed: int = 0
    """The same, of the layers that attend to the last `window` tokens."""
    window: int = 0

    def prompt(self, tokens: int) -> int:
        """FLOPs of a prompt of so many tokens, alone."""
        return 2 * self.weights * tokens + self._attention(tokens)

    def between(self, start: int, end: int, predicted: int = 0) -> int:
        """FLOPs of the tokens from `start` to `end` of a sequence, before `predicted` of which, or
        of later ones, the output head reads."""
        return self.prompt(end) - self.prompt(start) + 2 * self.head * predicted

    def completion(self, prompt: int, tokens: int) -> int:
        """FLOPs of a completion of `tokens` after a prompt of `prompt` tokens, the prompt's own
        not included."""
        linear = 2 * (self.weights + self.head) * tokens
        return linear + self._attention(prompt + tokens) - self._attention(prompt)

    def sequence(self, prompt: int, tokens: int) -> int:
        """FLOPs of a prompt and one completion."""
        return self.prompt(prompt) + self.completion(prompt, tokens)

    def samples(self, prompt: int, completions: Iterable[int], shared: bool) -> int:
        """FLOPs of several samples of one group. `shared`: the prompt is computed once for all of
        them. A completion without tokens is not computed, and costs nothing."""
        trained = [tokens for tokens in completions if tokens]
        prompts = min(len(trained), 1) if shared else len(trained)
        return prompts * self.prompt(prompt) + sum(self.completion(prompt, t) for t in trained)

    def _attention(self, tokens: int) -> int:
        # Each pair of a query and a key takes 2 FLOPs per number for the score, and 2 for the sum.
        within = max(min(tokens, self.window), 0)
        pairs = tokens * (tokens + 1) // 2
        near = within * (within + 1) // 2 + (tokens - within) * within
        return 4 * (self.attention * pairs + self.windowed * near)


TOKENS = SequenceCost(weights=1)
"""Of a model of which nothing is known: each token costs the same."""
