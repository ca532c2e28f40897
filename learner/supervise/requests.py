"""The supervisor's requests to its rank server, and the server's reports: one msgpack message per
packet."""

import msgspec

MAX_BYTES = 1 << 16


class SpawnRank(msgspec.Struct, tag="Spawn"):
    """Start a rank. The ranks meet in the file whose descriptor comes with the message."""

    local: int
    """The rank's number on this host."""
    environment: dict[str, str]


class Terminate(msgspec.Struct, tag=True):
    """Send SIGTERM to all ranks."""


class Ready(msgspec.Struct, tag=True):
    """Everything is imported. Ranks now start at once."""


class RankEnded(msgspec.Struct, tag="Ended"):
    """A rank has ended. The code is minus the signal's number if a signal ended it."""

    local: int
    code: int


Request = SpawnRank | Terminate
Report = Ready | RankEnded
