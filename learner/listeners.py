"""Close the ports on which gloo waits for the other ranks, once all ranks are connected."""

import contextlib
import ctypes
import os
import socket
import struct

SO_ATTACH_FILTER = 26
"""socket(7)"""
DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A socket filter of one instruction that keeps no byte of any packet (BPF_RET | BPF_K)."""


def accept_no_more(spared_port: int = 0) -> None:
    """Have the kernel drop new connections to the TCP ports that this process listens on now,
    except `spared_port`.

    Gloo keeps its listeners open as long as its groups and accepts any client. Closing them from
    outside would make gloo's thread spin. Established connections are not affected.
    """
    instructions = ctypes.create_string_buffer(DROP)
    program = struct.pack("HL", 1, ctypes.addressof(instructions))
    for descriptor in os.listdir("/proc/self/fd"):
        # Some descriptors are not sockets, and the descriptor of the listing itself is closed by
        # now.
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(int(descriptor))) as connection,
        ):
            tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
            listens = tcp and connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and connection.getsockname()[1] != spared_port:
                connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
