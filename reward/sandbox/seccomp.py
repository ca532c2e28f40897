"""The system-call filter of the sandbox, built by the system's libseccomp.

A layer beside the namespaces, not instead of them: it makes the kernel that a program can reach
smaller, and closes ways to memory that no limit counts.
"""

import contextlib
import ctypes
import os

from reward.sandbox.linux import CLONE_NEWUSER

_AF_UNIX = 1


class Filter:
    """A seccomp filter that refuses system calls with EPERM, built by libseccomp.

    Raises OSError where the library is not installed.
    """

    _EPERM = 0x00050000 | 1
    _ENOSYS = 0x00050000 | 38
    _ALLOW = 0x7FFF0000
    _NOT_EQUAL, _MASKED_EQUAL = 1, 7

    class _Compare(ctypes.Structure):
        _fields_ = [
            ("argument", ctypes.c_uint),
            ("operator", ctypes.c_int),
            ("first", ctypes.c_uint64),
            ("second", ctypes.c_uint64),
        ]

    def __init__(self) -> None:
        library = ctypes.PyDLL("libseccomp.so.2")
        library.seccomp_init.restype = ctypes.c_void_p
        library.seccomp_load.argtypes = [ctypes.c_void_p]
        library.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
        ]  # fmt: skip
        self._library = library
        self._filter = library.seccomp_init(self._ALLOW)

    def refuse(self, *calls: str) -> None:
        """Refuse these calls."""
        for call in calls:
            self._add(call, self._EPERM)

    def hide(self, call: str) -> None:
        """Have `call` fail as on a kernel that has no such call: callers have another way."""
        self._add(call, self._ENOSYS)

    def refuse_flag(self, call: str, argument: int, flag: int) -> None:
        """Refuse `call` where an argument has that bit set."""
        self._add(call, self._EPERM, self._Compare(argument, self._MASKED_EQUAL, flag, flag))

    def refuse_unless(self, call: str, argument: int, value: int) -> None:
        """Refuse `call` where an argument has another value."""
        self._add(call, self._EPERM, self._Compare(argument, self._NOT_EQUAL, value, 0))

    def _add(self, call: str, action: int, *compared: "Filter._Compare") -> None:
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        # What this library or machine has not got; negative numbers are its own pseudo calls.
        if number < 0:
            return
        array = (self._Compare * len(compared))(*compared)
        result = self._library.seccomp_rule_add_array(
            self._filter, action, number, len(compared), array
        )
        if result < 0:
            raise OSError(-result, f"seccomp rule for {call}: {os.strerror(-result)}")

    def load(self) -> None:
        """Put this process and all its children under the filter, for good."""
        result = self._library.seccomp_load(self._filter)
        if result < 0:
            raise OSError(-result, f"seccomp_load: {os.strerror(-result)}")


def harmless() -> Filter | None:
    """What a program gets: no sockets but local ones, and none of the calls that reach deep into
    the kernel. None where libseccomp is not installed."""
    found = None
    with contextlib.suppress(OSError):
        found = Filter()
    if found is None:
        return None
    # glibc falls back to clone, whose flags a filter can see.
    found.hide("clone3")
    found.refuse_flag("clone", 0, CLONE_NEWUSER)
    # asyncio and multiprocessing need local ones.
    found.refuse_unless("socket", 0, _AF_UNIX)
    found.refuse(
        "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree",
        "fsopen", "fsmount", "fsconfig", "fspick", "mount_setattr", "name_to_handle_at",
        "open_by_handle_at", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp",
        "pidfd_getfd", "process_madvise", "bpf", "perf_event_open", "userfaultfd",
        "io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key",
        "request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module",
        "delete_module", "reboot", "swapon", "swapoff", "quotactl", "acct", "syslog",
        "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "lookup_dcookie",
        "fanotify_init", "mbind", "migrate_pages", "move_pages", "set_mempolicy",
        # Memory that no limit counts.
        "memfd_create", "memfd_secret", "shmget", "msgget", "semget", "mq_open",
    )  # fmt: skip
    return found
