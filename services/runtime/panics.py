"""Panics of native libraries (tokenizers, safetensors) as exceptions.

A hostile tokenizer or row can make one panic. pyo3 raises that as a BaseException, which passes by
every `except Exception`: a learner would crash without end, and a worker lose the task.
"""

from collections.abc import Iterator
from contextlib import contextmanager


def is_panic(error: BaseException) -> bool:
    """Whether `error` is one; each library has a class of its own, of this name."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_as(kind: type[Exception]) -> Iterator[None]:
    """Raises `kind`, with the panic's words, where the block panics."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise kind(f"the tokenizer, or another native library, broke down: {error}") from error
