"""The supervisor's requests to its rank server, and the server's reports: one msgpack message a
packet."""

import msgspec

MAX_BYTES = 1 << 16


class Spawn(msgspec.Struct, tag=True):
    """Start a rank. A descriptor that comes with the message is the file in which ranks meet."""

    local: int
    """Its number among the ranks of this host."""
    environment: dict[str, str]


class Terminate(msgspec.Struct, tag=True):
    """Send SIGTERM to all ranks."""


class Ready(msgspec.Struct, tag=True):
    """Everything is imported, and ranks start at once."""


class Ended(msgspec.Struct, tag=True):
    """A rank has ended: with an exit code, or minus the number of a signal."""

    local: int
    code: int


Request = Spawn | Terminate
Report = Ready | Ended
