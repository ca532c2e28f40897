"""Errors that another start may not meet again: of a disk, of memory, of the hub's network.

A library, or a check, wraps them in words that sound final. They are found in what caused an error.
"""

import errno
import re
from collections.abc import Iterator

import torch
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from learner.errors import PeerFailed

NUMBERS = {
    *(errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
    *(errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO),
}
"""Of the system's calls."""


def passes(error: BaseException) -> bool:
    """Whether `error`, or what has caused it, may be over at the next start."""
    chain = list(_chain(error))
    return any(map(_passes, chain)) or (
        any(map(_hub_away, chain)) and not any(map(_hub_has_said, chain))
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, what has caused it, and so on."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _passes(error: BaseException) -> bool:
    if isinstance(error, PeerFailed):
        return error.passes
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NUMBERS
    # safetensors puts the number into its text only.
    named = re.search(r"\(os error (\d+)\)", str(error))
    return named is not None and int(named[1]) in NUMBERS


def _hub_away(error: BaseException) -> bool:
    """Whether the hub could not be asked."""
    # Of the HTTP client, which is not the same one in all versions of the hub's library.
    client = any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
    return client or isinstance(error, HfHubHTTPError | LocalEntryNotFoundError)


def _hub_has_said(error: BaseException) -> bool:
    """Whether the hub has answered, and will answer so again, or is not to be asked."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code != 429 and error.response.status_code < 500
    return isinstance(error, OfflineModeIsEnabled)
