"""A tokenizer of whole words and a scripted policy, for tests of episodes."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rollout.rewards.client import RewardClient
from rollout.vllm.client.response import Sample, Span

WORDS = [
    "<eos>",
    "[",
    "]",
    "{",
    "}",
    *"0123456789",
    "+",
    "*",
    "/",
    ".",
    " is ",
    "] ok",
    "so ",
    "][",
]
"""A tokenizer in which token i is the text WORDS[i]."""
EOS = 0
NO_REWARDS = cast(RewardClient, None)
"""A reward client for episodes that run no Python."""


class WordTokenizer:
    """Splits text into the longest words that fit. `[` and the like are ordinary text."""

    eos_token_id: int | None = EOS
    chat_template: Any = None

    def __call__(self, text: str, **options: Any) -> Any:
        ids = []
        while text:
            word = max((w for w in WORDS if text.startswith(w)), key=len)
            ids.append(WORDS.index(word))
            text = text[len(word) :]
        return {"input_ids": ids}

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError

    def decode(self, token_ids: Any, **options: Any) -> str:
        return "".join(WORDS[i] for i in token_ids)

    def batch_decode(self, sequences: Any, **options: Any) -> list[str]:
        return [self.decode(one) for one in sequences]

    def get_added_vocab(self) -> dict[str, int]:
        return {"<eos>": EOS}

    def get_vocab(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(WORDS)}


def ids(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


def sample(words: Sequence[str], reason: str = "stop", version: str = "a:1") -> Sample:
    """Return tokens sampled by one version, each with the log-probability −0.5."""
    spans = [Span(0, len(words), version)] if words else []
    array = np.array(ids(*words), np.int32)
    return Sample(array, np.full(len(words), -0.5, np.float32), reason, spans)


class Told:
    """A sampler with scripted answers: `begun`, then `more` by index of the completion."""

    ends = frozenset({EOS})

    def __init__(self, begun: list[Sample], more: dict[int, list[Sample]], room: int = 99) -> None:
        self.tokenizer = WordTokenizer()
        self.asked: list[tuple[list[int], int, str, int, int]] = []
        self._begun, self._more, self._room = begun, more, room
        self.messages: list[dict[str, Any]] = []
        """The answers as messages, in the order in which they are parsed."""

    def most_tokens(self, prompt_tokens: Sequence[int]) -> int:
        return self._room

    async def sample(
        self, token_ids: Sequence[int], n: int, stop: str = "", index: int = 0, done: int = 0
    ) -> list[Sample]:
        self.asked.append((list(token_ids), n, stop, index, done))
        return [self._more[index].pop(0)] if done else self._begun

    async def message(
        self, token_ids: Sequence[int], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return self.messages.pop(0)
