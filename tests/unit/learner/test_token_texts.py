"""Tokens as bytes: together they are the text that the tokenizer decodes."""

from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

from learner.metrics.token_texts import token_texts
from learner.model.loading.scratch import merging_tokenizer, train_merges
from services.contracts.config.model import BPETokenizer
from services.rollouts.token_texts import pieces
from tests.unit.learner.policies import tiny_model

TEXT = "Zwölf 12 €, 漢字 and 🙂 smile\n\tend"


def byte_level() -> Any:
    merges = train_merges(BPETokenizer(type="bpe", vocabulary=512), [TEXT])
    return merging_tokenizer(merges, 64)


def metaspace() -> Any:
    """Blanks are ▁, unknown characters are bytes, and the first blank of a text is dropped."""
    tokens = ["<unk>", "▁", "a", "▁a", "b", "<0xE2>", "<0x82>", "<0xAC>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def words() -> Any:
    """Words with blanks between them."""
    tokenizer = Tokenizer(WordLevel({"a": 0, "cat": 1, "sat": 2}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_bytes_of_a_byte_level_tokenizer_are_exact() -> None:
    tokenizer = byte_level()
    # The last two characters are not in what it was trained on.
    ids = tokenizer.encode(TEXT + "Жλ")
    texts = token_texts(tokenizer)
    assert b"".join(texts[id] for id in ids).decode() == tokenizer.decode(ids)
    assert "".join(pieces(ids, pa.array(texts)) or []) == tokenizer.decode(ids)
    # Some token holds a part of a character.
    assert any("\ufffd" in tokenizer.decode([id]) for id in ids)


@pytest.mark.parametrize(
    ("tokenizer", "ids", "text"),
    [
        (metaspace(), [4, 3, 5, 6, 7], "b a€"),
        (words(), [0, 1, 2], " a cat sat"),
        (tiny_model().tokenizer, [1, 7, 2], "<bos>3<eos>"),
    ],
    ids=["metaspace", "words", "characters"],
)
def test_bytes_of_other_tokenizers_have_the_blanks_of_the_middle_of_a_text(
    tokenizer: Any, ids: list[int], text: str
) -> None:
    texts = token_texts(tokenizer)
    assert b"".join(texts[id] for id in ids).decode() == text
