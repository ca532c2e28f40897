"""The bytes of each token of a tokenizer, so that tokens are shown and searched as text without the
tokenizer."""

import re
from typing import Any

REPLACEMENT = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_LEVEL = {chr(byte): byte for byte in _PRINTABLE}
BYTE_LEVEL |= {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
"""How byte-level tokenizers write each byte (GPT-2)."""


def token_texts(tokenizer: Any) -> list[bytes]:
    """Return the bytes that each token id adds to a text, special tokens included. A token may hold
    a part of a character."""
    ids = range(max(tokenizer.get_vocab().values(), default=-1) + 1)
    names = tokenizer.convert_ids_to_tokens([*ids])
    # Decoded behind another token: some tokenizers drop the blank of the first token of a text.
    before = tokenizer.encode("a", add_special_tokens=False)[-1:]
    begin = _decoded(tokenizer, [before])[0]
    texts = _decoded(tokenizer, [[*before, id] for id in ids])
    return [
        _bytes(name or "", text.removeprefix(begin))
        for name, text in zip(names, texts, strict=True)
    ]


def _decoded(tokenizer: Any, sequences: list[list[int]]) -> list[str]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # Lets other threads of the process run.
        return list(backend.decode_batch(sequences, skip_special_tokens=False))
    return list(
        tokenizer.batch_decode(
            sequences, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )


def _bytes(name: str, text: str) -> bytes:
    """Return the bytes of a token called `name` that decodes to `text` by itself."""
    if REPLACEMENT not in text:
        return text.encode()
    if match := _BYTE.fullmatch(name):
        return bytes([int(match[1], 16)])
    if name and all(character in BYTE_LEVEL for character in name):
        return bytes(BYTE_LEVEL[character] for character in name)
    return text.encode()
