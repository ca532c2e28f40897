"""The system calls that a program may use, as a filter built by the system's libseccomp.

The filter is an allow-list. It shrinks the part of the kernel that a program can reach, and closes
ways to memory and CPU time that no limit counts. Other calls fail with ENOSYS, as on a kernel
without the call, so C libraries fall back to another way. The namespaces hold without the filter.
"""

import ctypes
import errno
import os

_AF_UNIX = 1
_SOCK_STREAM, _SOCK_TYPES = 1, 0xF
# clone(2): CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACES = 0x7E020000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_LOCKED, _MAP_POPULATE = 0x01, 0x20, 0x2000, 0x8000
_MAP_HUGETLB = 0x40000
# F_DUPFD to F_GETLK, F_SETOWN to F_GETSIG, F_SETOWN_EX, F_GETOWN_EX, F_OFD_GETLK, F_DUPFD_CLOEXEC,
# F_GETPIPE_SZ. Not leases, sizes of pipes and seals.
_FCNTLS = (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 15, 16, 36, 1030, 1032)
_RECORD_LOCKS = (6, 7, 37, 38)
"""F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW."""
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: Python uses them on any file.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA (names of mappings).
_PRCTLS = (1, 2, 15, 16, 0x53564D41)
# SO_REUSEADDR, SO_LINGER, SO_PASSCRED, SO_RCVTIMEO, SO_SNDTIMEO: all options but the sizes of
# buffers.
_SOCKET_OPTIONS = (2, 13, 16, 20, 21)

_MEMORY = (
    "brk", "madvise", "membarrier", "mincore", "mprotect", "mremap", "msync", "munmap",
    "pkey_alloc", "pkey_free", "pkey_mprotect",
)  # fmt: skip
_FILES = (
    "access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup",
    "dup2", "dup3", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod",
    "fchmodat", "fchmodat2", "fchown", "fchownat", "fdatasync", "fgetxattr", "flistxattr", "flock",
    "fstat", "fstatfs", "fsync", "ftruncate", "futimesat", "getcwd", "getdents", "getdents64",
    "getxattr", "lchown", "lgetxattr", "link", "linkat", "listxattr", "llistxattr", "lseek",
    "lstat", "mkdir", "mkdirat", "mknod", "mknodat", "newfstatat", "open", "openat", "openat2",
    "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readlink",
    "readlinkat", "readv", "rename", "renameat", "renameat2", "rmdir", "sendfile", "stat", "statfs",
    "statx", "symlink", "symlinkat", "truncate", "umask", "unlink", "unlinkat", "utime",
    "utimensat", "utimes", "write", "writev",
)  # fmt: skip
_WAITING = (
    "eventfd", "eventfd2", "pipe", "pipe2", "poll", "ppoll", "pselect6", "select", "signalfd",
    "signalfd4", "timerfd_create", "timerfd_gettime", "timerfd_settime",
)  # fmt: skip
# The kernel keeps millions of watches of closed files. Without these calls asyncio polls.
_WATCHES = (
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait",
)  # fmt: skip
_PROCESSES = (
    "arch_prctl", "capget", "exit", "exit_group", "fork", "futex", "futex_requeue", "futex_wait",
    "futex_waitv", "futex_wake", "get_robust_list", "getcpu", "getegid", "geteuid", "getgid",
    "getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getresgid", "getresuid",
    "getrlimit", "getrusage", "getsid", "gettid", "getuid", "kill", "pause", "pidfd_open",
    "pidfd_send_signal", "prlimit64", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending",
    "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr",
    "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_yield",
    "set_robust_list", "set_tid_address", "setpgid", "setrlimit", "sigaltstack", "tgkill", "times",
    "tkill", "vfork", "wait4", "waitid",
)  # fmt: skip
_CLOCKS = (
    "alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "getrandom",
    "gettimeofday", "nanosleep", "setitimer", "sysinfo", "time", "timer_create", "timer_delete",
    "timer_getoverrun", "timer_gettime", "timer_settime", "uname",
)  # fmt: skip
_LOCAL_SOCKETS = (
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "recvfrom",
    "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "shutdown",
)  # fmt: skip
# A session of its own would give a child as much CPU time as all other processes of its worker.
_NOT_PERMITTED = ("setsid", "sched_setaffinity", "setpriority")


class _Compare(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def equal(argument: int, value: int) -> _Compare:
    return _Compare(argument, 4, value, 0)


def unequal(argument: int, value: int) -> _Compare:
    return _Compare(argument, 1, value, 0)


def masked(argument: int, mask: int, value: int) -> _Compare:
    """Compare: the bits `mask` of that argument are the bits of `value`."""
    return _Compare(argument, 7, mask, value)


class Filter:
    """A seccomp filter, built by libseccomp. Raises OSError if libseccomp is not installed."""

    _ALLOW = 0x7FFF0000
    _ERRNO = 0x00050000

    def __init__(self, default: int = _ALLOW) -> None:
        library = ctypes.PyDLL("libseccomp.so.2")
        library.seccomp_init.restype = ctypes.c_void_p
        library.seccomp_load.argtypes = [ctypes.c_void_p]
        library.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
        ]  # fmt: skip
        self._library = library
        self._filter = library.seccomp_init(default)

    @classmethod
    def of_nothing(cls) -> "Filter":
        return cls(cls._ERRNO | errno.ENOSYS)

    def allow(self, *calls: str, when: tuple[_Compare, ...] = ()) -> None:
        """Allow these calls if all comparisons hold."""
        for call in calls:
            self._add(call, self._ALLOW, *when)

    def refuse(self, *calls: str, when: tuple[_Compare, ...] = ()) -> None:
        """Let these calls fail with EPERM if all comparisons hold."""
        for call in calls:
            self._add(call, self._ERRNO | errno.EPERM, *when)

    def pretend(self, *calls: str, when: tuple[_Compare, ...] = ()) -> None:
        """Let these calls do nothing and return 0 if all comparisons hold."""
        for call in calls:
            self._add(call, self._ERRNO, *when)

    def _add(self, call: str, action: int, *compared: _Compare) -> None:
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        # The call does not exist in this library or on this machine. Negative numbers are
        # libseccomp's pseudo calls.
        if number < 0:
            return
        array = (_Compare * len(compared))(*compared)
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


def for_programs(*, counted: bool, isolated: bool) -> Filter | None:
    """Return the filter of a program. Return None if libseccomp is not installed.

    `counted`: a cgroup limits all memory of the program. Then the program may also use memory that
    belongs to no process: shared mappings, and the buffers of unread sockets.
    """
    try:
        rules = Filter.of_nothing()
    except OSError:
        return None
    rules.allow(*_MEMORY, *_FILES, *_WAITING, *_PROCESSES, *_CLOCKS, *_LOCAL_SOCKETS)
    rules.refuse(*_NOT_PERMITTED)
    # Without isolation, programs may start the host's programs.
    (rules.refuse if isolated else rules.allow)("execve", "execveat")
    rules.allow("clone", when=(masked(0, _NEW_NAMESPACES, 0),))
    rules.refuse("socket", "socketpair", when=(unequal(0, _AF_UNIX),))
    kind = () if counted else (masked(1, _SOCK_TYPES, _SOCK_STREAM),)
    rules.allow("socket", "socketpair", when=(equal(0, _AF_UNIX), *kind))
    # No limit on memory counts pages of MAP_HUGETLB. Without a cgroup, MAP_POPULATE and MAP_LOCKED
    # would take memory faster than it is measured, and a shared mapping without a file outlives its
    # process.
    refused = _MAP_HUGETLB | (0 if counted else _MAP_LOCKED | _MAP_POPULATE)
    for kinds in (0, _MAP_SHARED, _MAP_ANONYMOUS):
        mask = refused | _MAP_SHARED | _MAP_ANONYMOUS
        rules.allow("mmap", when=(masked(3, mask, kinds),))
    if counted:
        rules.allow("listen", *_WATCHES)
        shared = _MAP_SHARED | _MAP_ANONYMOUS
        rules.allow("mmap", when=(masked(3, refused | shared, shared),))
    # The kernel has memory for any number of record locks, and counts it for no process. sqlite
    # needs working locks, but is alone with its files. `flock` locks are allowed: a descriptor has
    # only one.
    for command in _RECORD_LOCKS:
        rules.pretend("fcntl", when=(equal(1, command),))
    for call, argument, values in (
        ("fcntl", 1, _FCNTLS),
        ("ioctl", 1, _IOCTLS),
        ("prctl", 0, _PRCTLS),
        ("setsockopt", 2, _SOCKET_OPTIONS),
    ):
        for value in values:
            rules.allow(call, when=(equal(argument, value),))
    return rules
