"""List the addresses that processes listen on, as the kernel reports them."""

import os
import re
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

LISTENS = "0A"
"""TCP_LISTEN in /proc/net/tcp."""
ACCEPTS = 1 << 16
"""__SO_ACCEPTCON in /proc/net/unix."""


def _inodes(pids: Sequence[int]) -> set[str]:
    found = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:
                continue
            if match := re.fullmatch(r"socket:\[(\d+)\]", target):
                found.add(match[1])
    return found


def listening_ports(pids: Sequence[int]) -> list[tuple[str, int]]:
    """Addresses and ports on which the processes accept TCP."""
    mine, found = _inodes(pids), []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in mine:
                address, port = fields[1].split(":")
                words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
                packed = struct.pack(f"<{len(words)}I", *words)
                family = socket.AF_INET if name == "tcp" else socket.AF_INET6
                found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found


def _unix(pids: Sequence[int]) -> list[str]:
    mine = _inodes(pids)
    fields = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return [f[7] for f in fields if len(f) > 7 and f[6] in mine and int(f[3], 16) & ACCEPTS]


def unix_sockets(pids: Sequence[int]) -> list[Path]:
    """Paths of the Unix sockets on which the processes accept connections."""
    return [Path(path) for path in _unix(pids) if not path.startswith("@")]


def abstract_sockets(pids: Sequence[int]) -> list[str]:
    """Names of their sockets without a path, with @ for the zero byte."""
    return [name for name in _unix(pids) if name.startswith("@")]
