"""A panic of a native library is an exception that all handlers catch."""

import asyncio

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import FixedLength

from services.runtime.panics import is_panic, panics_as


def broken() -> Tokenizer:
    tokenizer = Tokenizer(BPE(vocab={"a": 0}, merges=[]))
    tokenizer.pre_tokenizer = FixedLength(length=0)
    return tokenizer


def test_a_panic_of_a_tokenizer_raises_the_given_error() -> None:
    with pytest.raises(BaseException, match=r"\w") as raised:
        broken().encode("a")
    assert not isinstance(raised.value, Exception)
    assert is_panic(raised.value)
    with pytest.raises(LookupError, match="broke down"), panics_as(LookupError):
        broken().encode("a")


def test_other_errors_and_cancellation_pass() -> None:
    for error in (ValueError("x"), KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(type(error)), panics_as(LookupError):
            raise error
