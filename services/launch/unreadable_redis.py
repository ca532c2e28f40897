"""Tell from Redis' log, at a start, that Redis cannot read its files, and name the way out.

`redis_trial` tries what is left of them.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.commands import program
from services.launch.options import LaunchError

UNREADABLE = (
    "reading the append only file",
    "reading or opening the append",
    "Unable to obtain the AOF file",
    "AOF MANIFEST FILE ERROR",
    "loading DB",
    "Wrong RDB checksum",
    "Internal error in RDB reading",
    "RDB ERROR DETECTED",
)
"""In the log of Redis 6.2 to 8 and Valkey 8 to 9, before they end because of their files."""
NEWER = "RDB format version"
"""In the log, too, if a newer server has written them."""


def unreadable(text: str) -> bool:
    """Whether Redis ended because it cannot read its files, by `text`, its log. Files that a newer
    server wrote are not damaged."""
    return NEWER not in text and any(words in text for words in UNREADABLE)


class UnreadableRedis(LaunchError):
    def __init__(self, data: Path, log: str) -> None:
        words = [line for line in log.splitlines() if any(words in line for words in UNREADABLE)]
        recover = shlex.join([program(), "recover", "--data", str(data)])
        # A line has the process, the time and a sign before its text. `recover` does what Redis
        # advises after it.
        texts = [line.partition("# ")[2] or line.strip() for line in words]
        causes = dict.fromkeys(text.partition(": make a backup")[0] for text in texts)
        lines = [
            f"Redis cannot read its files in {data / 'redis'}",
            *causes,
            "Put back the folder's files or a backup (`headrace restore`).",
            "Or accept the loss, and keep what is whole:",
            f"  {recover}",
            f"Its log: {data / 'logs' / 'redis.log'}",
        ]
        super().__init__("\n  ".join(lines))


@contextmanager
def explained(data: Path) -> Iterator[None]:
    """Name the way out if the Redis of the folder `data` does not start on its files."""
    try:
        yield
    except LaunchError as error:
        if unreadable(str(error)):
            raise UnreadableRedis(data, str(error)) from None
        raise
