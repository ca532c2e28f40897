"""The ports on which gloo waits for the other ranks: closed once all are connected."""

import contextlib
import ctypes
import os
import socket
import struct

SO_ATTACH_FILTER = 26
"""socket(7)"""
DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A socket filter of one instruction: keep nothing of any packet (BPF_RET | BPF_K)."""


def accept_no_more() -> None:
    """Have the kernel drop what tries to connect to a TCP port of this process that is open now.

    Gloo keeps its listeners for as long as its groups, and accepts whoever comes. They cannot be
    closed behind its back: its thread would spin. Connections that stand are not touched.
    """
    instructions = ctypes.create_string_buffer(DROP)
    program = struct.pack("HL", 1, ctypes.addressof(instructions))
    for descriptor in os.listdir("/proc/self/fd"):
        # Not every descriptor is a socket, and that of the listing is closed by now.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as one:
            tcp = one.family in (socket.AF_INET, socket.AF_INET6)
            if tcp and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
