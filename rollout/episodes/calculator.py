"""A calculator that the policy may call while it answers (nanochat's GSM8K task).

It finds calls in the text of the sampled tokens, so token boundaries and interrupted requests do
not matter. A token that holds the end of a call and more text stays as sampled, and the result
follows it. If an interruption cut the end marker in two, vLLM samples on without the result: those
tokens are dropped.
"""

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from rollout.aio import together
from rollout.episodes import Completion, Sampler, UnusableEpisode
from rollout.episodes.arithmetic import calculate
from rollout.text.answer_text import prefill
from rollout.vllm.client.response import Sample
from rollout.vllm.client.resume import begun_by, joined, not_sampled
from rollout.vllm.model_files import TokenizerLike
from services.contracts.config.episodes import Calculator
from services.contracts.rows.dataset import Row


class CalculatorEpisode:
    """Samples all completions in one request until each ends or calls. From there each one
    continues alone."""

    def __init__(self, config: Calculator, tokenizer: TokenizerLike) -> None:
        """Raises UnusableEpisode if the tokenizer cannot encode and decode a marker."""
        self._config = config
        for name in ("start", "end", "output_start", "output_end"):
            text = getattr(config, name)
            decoded = _text(tokenizer, _ids(tokenizer, text))
            if text not in decoded:
                raise UnusableEpisode(
                    f"rollout.episode.{name} {text!r} is {decoded!r} to the model's tokenizer: "
                    "choose a text that it can encode"
                )

    async def run(
        self, row: Row, prompt_tokens: list[int], n: int, sampler: Sampler
    ) -> list[Completion]:
        begun = await sampler.sample(prompt_tokens, n, self._config.end)
        return await together(
            self._finished(prompt_tokens, index, sample, sampler)
            for index, sample in enumerate(begun)
        )

    async def _finished(
        self, prompt: list[int], index: int, whole: Sample, sampler: Sampler
    ) -> Completion:
        trained = np.ones(len(whole.token_ids), dtype=np.bool_)
        calls = 0
        # The part after the last result begins at token `since`. The first `read` characters of its
        # text have been searched for calls.
        since = read = 0
        while True:
            sampled = whole.token_ids[since:]
            call = self._next_call(sampled, read, sampler.tokenizer)
            if call is None:
                break
            expression, read, length = call
            result = None
            if expression is not None and calls < self._config.max_calls:
                result = calculate(expression)
            if result is not None:
                whole = begun_by(whole, since + length)
                shown = f"{self._config.output_start}{result}{self._config.output_end}"
                ids = _ids(sampler.tokenizer, shown)[
                    : sampler.most_tokens(prompt) - len(whole.token_ids)
                ]
                whole = joined(whole, not_sampled(ids, "stop"))
                trained = np.append(trained[: since + length], np.zeros(len(ids), dtype=np.bool_))
                since, read, calls = len(whole.token_ids), 0, calls + 1
            elif length < len(sampled) or whole.finish_reason != "stop":
                continue  # The answer ended for another reason.
            done = len(whole.token_ids)
            begun = [*prompt, *whole.token_ids.tolist()]
            (more,) = await sampler.sample(begun, 1, self._config.end, index, done)
            whole = joined(whole, more)
            trained = np.append(trained, np.ones(len(more.token_ids), dtype=np.bool_))
        begins = prefill(sampler.tokenizer, prompt)
        return Completion.of(whole, trained, text=_answer(whole, sampler), prefill=begins)

    def _next_call(
        self, tokens: npt.NDArray[np.int32], read: int, tokenizer: TokenizerLike
    ) -> tuple[str | None, int, int] | None:
        """Find the first end of a call after character `read` of the tokens' text.

        Returns its expression (None if no call had begun), the end of the marker in the text, and
        how many tokens contain the whole marker. Returns None if no call ends.
        """
        start, stop = self._config.start, self._config.end
        text = _text(tokenizer, tokens)
        at = text.find(stop, read)
        if at < 0:
            return None
        begins = text.rfind(start, read, at)
        expression = text[begins + len(start) : at] if begins >= 0 else None
        length = bisect_left(
            range(len(tokens)), True, key=lambda n: stop in _text(tokenizer, tokens[:n])[read:]
        )
        return expression, at + len(stop), length


def _answer(whole: Sample, sampler: Sampler) -> str:
    """Return the text for verifiers: with markers and results, even if they are special tokens,
    without the end of sequence."""
    ids = whole.token_ids
    if len(ids) and int(ids[-1]) in sampler.ends:
        ids = ids[:-1]
    return _text(sampler.tokenizer, ids)


def _ids(tokenizer: TokenizerLike, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _text(tokenizer: TokenizerLike, ids: object) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
