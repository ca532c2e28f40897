"""Turn dataset rows into token sequences for supervised training. Pure, except for the tokenizer.

An answer is tokenised as it will be sampled: after its prompt, as rollout workers render the
prompt, and up to the token that ends it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from learner.batch.conversations import ChatRow, chat_row, write
from learner.errors import RunCannotGoOn
from services.contracts.config.data import SFTData
from services.contracts.rows.dataset import Row
from services.contracts.rows.preference import Preferred, preferred
from services.contracts.rows.rendering import begin_ids, plain_text, templated
from services.contracts.rows.turn_end import special_texts, turn_ends

if TYPE_CHECKING:
    # `rendered_rows` needs rows without tensors, in a process that does not import torch.
    import torch

NO_BYTES = -1
"""The size of a token that spells nothing of the row's text."""


class UnusableRow(RunCannotGoOn):
    """A dataset row that cannot be trained on. The message names the row."""


@dataclass(frozen=True)
class TokenRow:
    """A tokenised dataset row of any length."""

    tokens: npt.NDArray[np.int64]
    """[t]."""
    spans: npt.NDArray[np.int32]
    """[n, 2] first token and end (exclusive) of each stretch in the loss."""
    sizes: npt.NDArray[np.int16]
    """[t] UTF-8 bytes of the row's own text that each token spells. NO_BYTES for end of sequence,
    special tokens and tokens of the chat template. A character of several tokens counts at its
    first token, so its other tokens have 0."""


@dataclass(frozen=True)
class Example:
    """A row, or part of a row, as the model reads it."""

    tokens: "torch.Tensor"
    """[t]."""
    loss_mask: "torch.Tensor"
    """[t] bool: tokens in the loss. The first token is never in the loss."""
    component: int = 0
    """Index of its dataset in the mixture."""
    sizes: "torch.Tensor | None" = None
    """[t] sizes as in TokenRow. None if bits per byte are not measured."""
    sampling_mask: "torch.Tensor | None" = None
    experts: "torch.Tensor | None" = None
    """Always None, as in a `TrainingSample` from the whole vocabulary without recorded routing."""


def example(row: TokenRow, length: int | None = None, component: int = 0) -> Example:
    """Return `row`, or its first `length` tokens, with the sizes of its tokens."""
    import torch

    tokens = torch.from_numpy(row.tokens[:length].astype(np.int64))
    mask = torch.zeros(len(tokens), dtype=torch.bool)
    for start, end in row.spans:
        mask[max(int(start), 1) : int(end)] = True
    sizes = torch.from_numpy(row.sizes[:length].astype(np.int16))
    return Example(tokens, mask, component, sizes)


class RowTokenizer:
    def __init__(self, tokenizer: Any, data: SFTData, answer: Preferred | None = None) -> None:
        """`answer`: the answer of a pair that is tokenised, and the only part in the loss. None: a
        row has one answer."""
        self._tokenizer, self._answer = tokenizer, answer
        self._data = data.model_copy(update={"train_on": "last"}) if answer else data
        self._templated = templated(data, tokenizer)
        self._special, self._ends = special_texts(tokenizer), turn_ends(tokenizer)

    def row(self, row: Row, index: int) -> TokenRow:
        """Tokenise row `index` of its dataset.

        Raises UnusableRow, which names the row, if it has no answer, if its roles are out of order,
        if the tokenizer does not know a character, or if the template refuses the row or cannot
        locate its answers.
        """
        try:
            chosen = preferred(row, self._answer) if self._answer else row
            content = chat_row(chosen, self._data)
            if isinstance(content, str):
                tokenised = self._text(content)
            elif self._templated:
                tokenised = self._chat(content)
            else:
                tokenised = self._answered(content)
        except ValueError as error:
            text = str(error)
            verb = text.startswith(("has ", "is ", "holds "))
            raise UnusableRow(f"dataset row {index}{' ' if verb else ': '}{text}") from error
        if not len(tokenised.spans):
            raise UnusableRow(f"dataset row {index} has no token in the loss: remove it")
        return tokenised

    def _chat(self, row: ChatRow) -> TokenRow:
        train_on = self._data.train_on
        written = write(row, self._tokenizer, train_on, self._special, self._ends)
        from_row = _own_text(written.text, _texts(row, written.begins))
        cuts = [place for span in written.spans for place in span]
        tokens, sizes, places = self._encoded(written.text, from_row, cuts)
        spans = [(places[a], places[b]) for a, b in written.spans]
        if not written.ended:
            tokens, sizes = np.append(tokens, self._eos()), np.append(sizes, np.int16(NO_BYTES))
            if spans and written.spans[-1][1] == len(written.text):
                spans[-1] = (spans[-1][0], len(tokens))
        if train_on == "all":
            spans = [(1, len(tokens))]
        self._check_known(tokens, written.text)
        return _token_row(tokens, spans, sizes)

    def _answered(self, row: ChatRow) -> TokenRow:
        """Join the contents by blank lines, without a chat template, as rollout workers do."""
        *asked, last = row.turns
        several = any(turn["role"] == "assistant" for turn in asked)
        if (
            last["role"] != "assistant"
            or row.tools
            or (several and self._data.train_on == "assistant")
        ):
            raise ValueError(
                "is a conversation of several turns, and the tokenizer has no chat template to "
                "write it with: add chat_template.jinja to the model's folder, or upload rows of a "
                "prompt and an answer"
            )
        prompt, answer = plain_text(asked), str(last["content"])
        before, sizes = self._opened(prompt)
        after, more, _ = self._encoded(answer, np.ones(len(answer), dtype=bool), [])
        tokens = np.concatenate([before, after, [self._eos()]])
        spans = [(1 if self._data.train_on == "all" else len(before), len(tokens))]
        self._check_known(tokens, prompt + answer)
        return _token_row(tokens, spans, np.concatenate([sizes, more, [NO_BYTES]]))

    def _text(self, text: str) -> TokenRow:
        tokens, sizes = self._opened(text)
        bos, eos = self._tokenizer.bos_token_id, self._eos()
        if bos is None:
            raise ValueError(
                "is plain text, and the tokenizer has no token to begin a text with: set bos_token "
                "in the model's tokenizer_config.json, or upload prompts with answers"
            )
        if not len(tokens) or tokens[0] != bos:
            tokens, sizes = np.insert(tokens, 0, bos), np.insert(sizes, 0, NO_BYTES)
        if tokens[-1] != eos:
            tokens, sizes = np.append(tokens, eos), np.append(sizes, NO_BYTES)
        self._check_known(tokens, text)
        return _token_row(tokens, [(1, len(tokens))], sizes)

    def _eos(self) -> int:
        if self._tokenizer.eos_token_id is None:
            raise ValueError(
                "is not ended by a chat template, and the tokenizer has no end of sequence: set "
                "eos_token in the model's tokenizer_config.json"
            )
        return int(self._tokenizer.eos_token_id)

    def _check_known(self, tokens: npt.NDArray[np.int64], text: str) -> None:
        unknown = unknown_id(self._tokenizer)
        if unknown is None or not (tokens == unknown).any():
            return
        raise ValueError(
            "holds characters that the tokenizer does not know: "
            f"{', '.join(map(repr, lacking(text, self._tokenizer)))}; add them to "
            "model.tokenizer.alphabet"
        )

    def _opened(self, text: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]:
        """Tokenise the row's own text as `rendering.text_ids` does. Return tokens and sizes."""
        tokens, sizes, _ = self._encoded(text, np.ones(len(text), dtype=bool), [])
        begin = begin_ids(text, self._tokenizer)
        if not begin or tokens[: len(begin)].tolist() == begin:
            return tokens, sizes
        none = np.full(len(begin), NO_BYTES, dtype=np.int16)
        return np.concatenate([np.array(begin, np.int64), tokens]), np.concatenate([none, sizes])

    def _encoded(
        self, text: str, from_row: npt.NDArray[np.bool_], cuts: list[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16], dict[int, int]]:
        """Tokenise `text`. Return tokens, sizes, and for each character of `cuts` the token that
        begins there. `from_row` marks the row's own characters. If a token would cross a cut,
        the text is tokenised in pieces, because sampling begins at the cut."""
        if not self._tokenizer.is_fast:
            return self._piecewise(text, from_row, cuts)
        encoding = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        tokens = np.array(encoding["input_ids"], dtype=np.int64)
        offsets = np.array(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        starts, ends = _extents(offsets)
        places = np.searchsorted(starts, cuts) if len(starts) else np.zeros(len(cuts), np.int64)
        # A place after all tokens is the end. Elsewhere a token must begin exactly at the cut.
        whole = (places == len(starts)) | (starts[np.minimum(places, len(starts) - 1)] == cuts)
        if cuts and not whole.all():
            return self._piecewise(text, from_row, cuts)
        at = dict(zip(cuts, map(int, places), strict=True))
        return tokens, _sizes(text, from_row, starts, ends), at

    def _piecewise(
        self, text: str, from_row: npt.NDArray[np.bool_], cuts: list[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16], dict[int, int]]:
        edges = sorted({0, *cuts, len(text)})
        tokens: list[npt.NDArray[np.int64]] = []
        sizes: list[npt.NDArray[np.int16]] = []
        at = {0: 0}
        for start, end in pairwise(edges):
            piece = text[start:end]
            if self._tokenizer.is_fast:
                piece_tokens, spelled, _ = self._encoded(piece, from_row[start:end], [])
            else:
                ids = self._tokenizer(piece, add_special_tokens=False)["input_ids"]
                piece_tokens = np.array(ids, dtype=np.int64)
                # Without offsets the bytes of a token are unknown.
                spelled = np.full(len(piece_tokens), NO_BYTES, dtype=np.int16)
            tokens.append(piece_tokens)
            sizes.append(spelled)
            at[end] = at[start] + len(piece_tokens)
        if not tokens:
            return np.zeros(0, np.int64), np.zeros(0, np.int16), at
        return np.concatenate(tokens), np.concatenate(sizes), at


def _texts(row: ChatRow, begins: dict[int, int]) -> list[tuple[str, int]]:
    """Return the row's own texts in a chat, in the order in which templates write them, each with
    the first character of its turn (0 if unknown)."""
    keys = ("reasoning_content", "content")
    texts = [(turn.get(key), begins.get(i, 0)) for i, turn in enumerate(row.turns) for key in keys]
    return [(text.strip(), at) for text, at in texts if isinstance(text, str) and text.strip()]


def _own_text(whole: str, parts: list[tuple[str, int]]) -> npt.NDArray[np.bool_]:
    """[characters] mark the characters of `parts` in `whole`.

    Parts are searched in order, each from its turn's first character on, because the template's own
    text may also contain a short answer. If the template changes a part, the part stays unmarked
    and its tokens count as the template's.
    """
    from_row, end = np.zeros(len(whole), dtype=bool), 0
    for part, earliest in parts:
        if (start := whole.find(part, max(end, earliest))) >= 0:
            end = start + len(part)
            from_row[start:end] = True
    return from_row


def _extents(
    offsets: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[t] first character and end (exclusive) of each token. Blanks that a tokenizer leaves out of
    its offsets belong to the next token. Several tokens may share a character."""
    ends = np.maximum.accumulate(offsets[:, 1]) if len(offsets) else offsets[:, 1]
    before = np.concatenate([[0], ends[:-1]]) if len(offsets) else ends
    shares = (offsets[:, 1] > offsets[:, 0]) & (offsets[:, 0] < before)
    return np.where(shares, np.minimum(offsets[:, 0], before), before), ends


def _sizes(
    text: str,
    from_row: npt.NDArray[np.bool_],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> npt.NDArray[np.int16]:
    """[t] bytes of own text that each token spells. A character of several tokens counts at its
    first token."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    width = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    size = np.concatenate([[0], np.cumsum(width * from_row)])
    count = np.concatenate([[0], np.cumsum(from_row)])
    before = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    spelled = size[ends] - size[np.maximum(before, starts)]
    none = count[ends] == count[starts]
    return np.where(none, NO_BYTES, np.minimum(spelled, np.iinfo(np.int16).max)).astype(np.int16)


def _token_row(
    tokens: npt.NDArray[np.int64], spans: list[tuple[int, int]], sizes: npt.NDArray[np.int16]
) -> TokenRow:
    kept = [(max(a, 1), b) for a, b in spans if b > max(a, 1)]
    kept_spans = np.array(kept, dtype=np.int32).reshape(-1, 2)
    return TokenRow(tokens, kept_spans, sizes.astype(np.int16))


def unknown_id(tokenizer: Any) -> int | None:
    """Return the id that stands for text without a token of its own. Return None if the tokenizer
    has no such id: GPT-2's unknown token is its end of text."""
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return None if tokenizer.unk_token_id in ids else tokenizer.unk_token_id


def lacking(text: str, tokenizer: Any) -> list[str]:
    """Return the characters of `text` that the tokenizer has no token for, sorted."""
    unknown = unknown_id(tokenizer)

    def known(character: str) -> bool:
        ids = tokenizer(character, add_special_tokens=False)["input_ids"]
        # Some tokenizers drop blanks by design and encode them with the next word.
        return (unknown is None or unknown not in ids) and (bool(ids) or character.isspace())

    return sorted(character for character in set(text) if not known(character))
