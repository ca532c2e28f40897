"""How many groups to hold at once. Pure."""

import math
from dataclasses import dataclass

from rollout.rewards.combine import REASON_LIMIT
from rollout.vllm.sampling_mask import TIES
from services.contracts.groups.sampled_answer import REFERENCE_LIMIT

QUEUED = 1.25
"""Sequences in vLLM, for each one that it runs at once."""
SPANS = 8
"""Versions that may sample one completion."""
PARTS = 4
"""Named parts that the reward of a verifier may have."""
RECENT = 32
"""Groups over which lengths are averaged, about."""


@dataclass
class Sequences:
    """How many completions vLLM runs at once: as many as its cache holds.

    vLLM would begin more, and begin some of them again when they have grown. So a completion
    counts with the length that the run's completions have had lately; before there were any, with
    the longest."""

    most: int
    """That vLLM runs whatever their lengths."""
    cache_tokens: int | None
    """None: whatever their lengths, `most` fit."""
    tokens: float
    """Of a prompt and its completion."""
    known: bool = False
    """Whether `tokens` was observed."""

    def finished(self, prompt: int, completions: int, samples: int) -> None:
        """A group of `samples` completions with so many tokens in all."""
        length = prompt + completions / samples
        self.tokens += (length - self.tokens) / (RECENT if self.known else 1)
        self.known = True

    @property
    def at_once(self) -> int:
        """Completions."""
        if self.cache_tokens is None:
            return self.most
        return max(1, min(self.most, int(self.cache_tokens / self.tokens)))


def slots(max_num_seqs: int, samples: int, groups_in_flight: int | None) -> int:
    """Groups in vLLM at once: as configured, else enough for its sequences and a quarter more, so
    that the next sequence already waits in vLLM when one ends."""
    if groups_in_flight is not None:
        return groups_in_flight
    return max(1, math.ceil(QUEUED * max_num_seqs / samples))


def widened(least: int, generating: int, unfinished: int, max_num_seqs: int, samples: int) -> int:
    """Groups in vLLM at once, while it has `unfinished` sequences of `generating` groups: a group
    that waits for its longest answer needs one sequence, not all of them. At least `least`, also
    while the server has not begun its requests; at most one group for each sequence."""
    free = math.floor((QUEUED * max_num_seqs - unfinished) / samples)
    return max(least, min(generating + free, max_num_seqs))


def to_lease(slots: int, generating: int, scoring: int) -> int:
    """How many more groups to lease now.

    Groups that are being scored need no slot in vLLM. So that they do not pile up behind a slow
    reward service, the worker holds at most twice the slots in all.
    """
    return max(0, min(slots - generating, 2 * slots - generating - scoring))


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
    """Most bytes a group can take on the wire, for the lease's byte budget.

    9 bytes a token (id up to 4, log-probability 4, mask 1 bit; 4 more if `taught`), 4 a prompt
    token, `routing` more for each of both; 16 a span, of which a sample has SPANS and one more for
    each of its `calls`; a header of about 1 kB with the reference, and for each sample a status, a
    finish reason, and of each component a reward with up to PARTS parts and a reason (up to 4 bytes
    a character). With `top_k` the sampling mask before it is deflated: a
    count, and 3 bytes a token.
    """
    tokens = samples * min(max_tokens, context)
    reasons = components * 4 * (REASON_LIMIT + 16)
    header = 1024 + 4 * REFERENCE_LIMIT + samples * (48 + 16 * components * (1 + PARTS) + reasons)
    masks = tokens * (4 + 3 * (top_k + TIES)) if top_k else 0
    spans = 16 * samples * (SPANS + calls)
    return masks + (9 + 4 * taught + routing) * tokens + (4 + routing) * context + spans + header
