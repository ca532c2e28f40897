"""Computes how many groups a worker holds at once, and how they share vLLM with held-out rows.
Pure."""

import math
from dataclasses import dataclass

from rollout.rewards.combine import REASON_LIMIT
from rollout.vllm.client.sampling_mask import TIES
from services.contracts.groups.sampled_answer import REFERENCE_LIMIT

QUEUED = 1.25
"""Sequences to have in vLLM, running and queued, for each sequence that it can run at once."""
SPANS = 8
"""Versions that may sample one completion."""
PARTS = 4
"""Named parts that a verifier's reward may have."""
RECENT = 32
"""Number of groups over which the mean length is taken, about."""


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
    samples: int,
    max_tokens: int,
    context: int,
    components: int,
    calls: int = 0,
    top_k: int = 0,
    routing: int = 0,
    taught: bool = False,
) -> int:
    """Return the most bytes that a group can take, for the lease's byte budget.
    - completion token: 9 bytes (id up to 4, log-probability 4, mask 1 bit), 4 more if `taught`, and
      `routing`
    - prompt token: 4 bytes, and `routing`
    - span: 16 bytes; a sample has SPANS spans, and one more for each of its `calls`
    - header: about 1 kB with the reference; each sample adds a status, a finish reason, and for
      each component a reward with up to PARTS parts and a reason (up to 4 bytes a character)
    - sampling mask, with `top_k`, before it is deflated: a count and 3 bytes for each candidate
    """
    tokens = samples * min(max_tokens, context)
    reasons = components * 4 * (REASON_LIMIT + 16)
    header = 1024 + 4 * REFERENCE_LIMIT + samples * (48 + 16 * components * (1 + PARTS) + reasons)
    masks = tokens * (4 + 3 * (top_k + TIES)) if top_k else 0
    spans = 16 * samples * (SPANS + calls)
    return masks + (9 + 4 * taught + routing) * tokens + (4 + routing) * context + spans + header
