"""Turns panics of native libraries (tokenizers, safetensors) into exceptions.

A hostile tokenizer or row can cause a panic. pyo3 raises it as a BaseException, which no `except
Exception` catches: a learner would crash in a loop, and a worker lose the task.
"""

from collections.abc import Iterator
from contextlib import contextmanager


def is_panic(error: BaseException) -> bool:
    """Return whether `error` is a panic. Each library has a class of its own with this name."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_as(kind: type[Exception]) -> Iterator[None]:
    """Raise `kind`, with the panic's words, if the block panics."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise kind(f"the tokenizer, or another native library, broke down: {error}") from error
