"""Recognise errors that may pass by the next start: of a disk, of memory, of the hub's network.

A library or a check may wrap such an error in another one, so the causes of an error are searched
too.
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
"""Error numbers of system calls that may pass."""


def passes(error: BaseException, is_new: bool = False) -> bool:
    """Whether `error`, or one of its causes, may pass by the next start. `is_new`: the
    run has trained no step. Such a run fails at once if the hub is away, so its user soon knows."""
    if isinstance(error, PeerFailed):
        return error.passes_when_new if is_new else error.passes
    causes = list(_causes(error))
    if any(map(_passes, causes)):
        return True
    return not is_new and any(map(_hub_away, causes)) and not any(map(_hub_answered, causes))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes, innermost last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _passes(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NUMBERS
    # safetensors gives the error number only as text.
    named = re.search(r"\(os error (\d+)\)", str(error))
    return named is not None and int(named[1]) in NUMBERS


def _hub_away(error: BaseException) -> bool:
    # The hub's library changed its HTTP client between versions, so the class is matched by name.
    client = any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
    return client or isinstance(error, HfHubHTTPError | LocalEntryNotFoundError)


def _hub_answered(error: BaseException) -> bool:
    """Whether the hub gave an answer that will not change, or is switched off (offline mode)."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code != 429 and error.response.status_code < 500
    return isinstance(error, OfflineModeIsEnabled)
