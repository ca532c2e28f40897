"""The bytes of each token of a run's vocabulary, so that the gateway shows tokens as text without
loading a tokenizer. The learner writes the file once; readers map it."""

import codecs
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

NAME = "tokens.arrow"


def write_token_texts(path: Path, texts: Sequence[bytes]) -> None:
    """Write the bytes of each token id, from 0."""
    table = pa.table({"bytes": pa.array(texts, pa.binary())})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def read_token_texts(folder: Path) -> pa.BinaryArray | None:
    """Map the tokens' bytes, or return None if the file cannot be read."""
    try:
        source = pa.memory_map(str(folder / NAME))
        column = pa.ipc.open_file(source).read_all().column("bytes")
        array = column.chunk(0)
        array.validate(full=True)
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return array if isinstance(array, pa.BinaryArray) else None


def pieces(ids: Sequence[int], texts: pa.BinaryArray | None) -> list[str] | None:
    """Return the text of each token. Together they are the decoded text. A character whose bytes
    several tokens share is in the last one."""
    if texts is None:
        return None
    places = np.asarray(ids, np.int64)
    # A vocabulary may have ids beyond its tokens.
    known = pa.array(np.where(places < len(texts), places, 0), mask=places >= len(texts))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoded = [decoder.decode(value or b"") for value in texts.take(known).to_pylist()]
    if decoded and (rest := decoder.decode(b"", final=True)):
        decoded[-1] += rest
    return decoded
