"""System calls of the sandbox for which Python has no function. Linux on x86-64 and ARM64.

All raise OSError with the name of the call. They are for single-threaded processes only: `clone`
knows nothing of threads.
"""

import ctypes
import os
import platform
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MNT_DETACH = 0x2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_ATTR_RDONLY = 0x1
_ATTR_NOSUID = 0x2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_CAPABILITY_VERSION = 0x20080522
_MOUNT_SETATTR = 442
_NUMBERS = {"x86_64": {"clone": 56, "pivot_root": 155}, "aarch64": {"clone": 220, "pivot_root": 41}}

# PyDLL keeps the interpreter's lock during a call. The child of a clone must not have to wait for
# it.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(call: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _number(call: str) -> int:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise OSError(f"{call}: not known on {platform.machine()}")
    return numbers[call]


def clone(flags: int) -> int:
    """Fork into new namespaces. Return the child's id, and 0 in the child.

    The child may only fork and wait. The C library takes the child for its parent, so foreign code
    should not run there.
    """
    number = _number("clone")
    return _checked("clone", _libc.syscall(number, flags | signal.SIGCHLD, 0, 0, 0, 0))


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _checked("unshare", _libc.unshare(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = [text.encode() or None for text in (source, target, kind)]
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None)
    _checked(f"mount of {kind or source or 'propagation'} on {target}", result)


def detach(target: str) -> None:
    _checked(f"umount of {target}", _libc.umount2(target.encode(), MNT_DETACH))


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root, and mount the previous root at `old`."""
    _checked("pivot_root", _libc.syscall(_number("pivot_root"), new.encode(), old.encode()))


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def make_read_only(path: str) -> None:
    """Make the mount at `path`, and all mounts below it, read-only and without set-uid. Linux
    5.12."""
    attributes = _MountAttributes(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, ctypes.byref(attributes), size
    )
    _checked(f"mount_setattr of {path}", result)


def prctl(option: int, value: int) -> None:
    _checked(f"prctl({option})", _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def drop_capabilities() -> None:
    """Give up all capabilities, for good once PR_SET_NO_NEW_PRIVS is set."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    _checked("capset", _libc.capset(header, none))
