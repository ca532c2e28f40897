"""Computes how many groups a worker holds at once, and how they share vLLM with held-out rows.
Pure."""

import math
from dataclasses import dataclass

QUEUED = 1.25
"""Sequences to have in vLLM, running and queued, for each sequence that it can run at once."""
COMPONENT_BYTES = 2048
"""The most bytes of a sample's reward by one verifier: its parts, and its reason of up to 300
characters. A sample's status and spans are included."""
RECENT = 32
"""Groups over which the mean length is taken, approximately."""


@dataclass
class Sequences:
    """How many completions vLLM runs at once: as many as fit its cache.

    vLLM would start more, and restart some of them once they have grown. So each completion counts
    with the mean length of the run's recent completions, and with the longest possible length
    before the first group.
    """

    most: int
    """The most that vLLM runs, whatever their lengths."""
    cache_tokens: int | None
    """Tokens that the cache holds. None: `most` completions of any length fit."""
    tokens: float
    """Expected length of a prompt with its completion."""
    known: bool = False
    """Whether `tokens` was measured."""

    def finished(self, prompt: int, completions: int, samples: int) -> None:
        """Note a finished group: `samples` completions with `completions` tokens in all, after a
        prompt of `prompt` tokens."""
        length = prompt + completions / samples
        self.tokens += (length - self.tokens) / (RECENT if self.known else 1)
        self.known = True

    @property
    def at_once(self) -> int:
        """Completions that vLLM runs at once."""
        if self.cache_tokens is None:
            return self.most
        return max(1, min(self.most, int(self.cache_tokens / self.tokens)))


def slots(max_num_seqs: int, samples: int, groups_in_flight: int | None) -> int:
    """Return how many groups to have in vLLM: as configured, or enough for its sequences and a
    quarter more, so that the next sequence already waits when one ends."""
    if groups_in_flight is not None:
        return groups_in_flight
    return max(1, math.ceil(QUEUED * max_num_seqs / samples))


def widened(least: int, generating: int, unfinished: int, max_num_seqs: int, samples: int) -> int:
    """Return how many groups to have in vLLM while `generating` groups have `unfinished` sequences
    there. A group that waits for its longest answer needs only one sequence.

    The result is at least `least`, also before the server has begun its requests, and at most one
    group for each sequence.
    """
    free = math.floor((QUEUED * max_num_seqs - unfinished) / samples)
    return max(least, min(generating + free, max_num_seqs))


def to_lease(slots: int, generating: int, scoring: int) -> int:
    """Return how many more groups to lease now.

    Groups that are being scored need no slot in vLLM. The worker holds at most twice the slots in
    all, so that groups do not pile up behind a slow reward service.
    """
    return max(0, min(slots - generating, 2 * slots - generating - scoring))


def share_of(completions: int, used: int, share: float, samples: int) -> int:
    """Return how many rows or groups of `samples` completions evaluation or training may have in
    vLLM: its `share` of all `completions`, or what the other has not `used` if that is more."""
    return max(1, math.floor(max(share * completions, completions - used) / samples))


def reserve_bytes(
    samples: int, components: int, tokens: int, token_bytes: int, prompt_bytes: int
) -> int:
    """Return about the most bytes that a group takes, which a lease counts before the run's first
    group. `tokens`: the most of a completion, of `token_bytes` each; `prompt_bytes`: of the
    prompt."""
    return samples * (tokens * token_bytes + components * COMPONENT_BYTES) + prompt_bytes
