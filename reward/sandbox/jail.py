"""Builds the world of sandboxed programs: namespaces, and a root with Python and little else.

Each zygote calls it once, single-threaded, before there is any program. That world lacks /proc,
which most containers refuse to mount.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from reward.sandbox import linux

NOBODY = 65534
HOME = "/tmp"
"""The only folder in which a program may write."""
_BELOW_HOME = "/below-home"
"""Where the root has the files that lie below HOME outside."""
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")
_DEVICES = ("null", "full", "random", "urandom")
"""`zero` is missing: a shared mapping of `zero` is memory that belongs to no process."""


def enter_namespaces() -> bool:
    """Move into new namespaces, with all rights inside and no right outside.

    Return whether NOBODY is a user there: programs then run as NOBODY. If not, this process's own
    user is the only one. Raises OSError, which says what the system refuses.
    """
    user, group = os.geteuid(), os.getegid()
    mapping = _Mapping() if user == 0 else None
    try:
        linux.unshare(
            linux.CLONE_NEWUSER
            | linux.CLONE_NEWNS
            | linux.CLONE_NEWNET
            | linux.CLONE_NEWIPC
            | linux.CLONE_NEWUTS
        )
    finally:
        mapped = mapping is not None and mapping.done()
    if mapped:
        os.setgroups([])
    else:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
    return mapped


class _Mapping:
    """The users root and NOBODY for this process's future user namespace.

    Only a process outside a namespace can map two users into it. So this class forks one before its
    own process moves inside.
    """

    def __init__(self) -> None:
        wait, self._go = os.pipe()
        target = os.getpid()
        self._pid = os.fork()
        if self._pid:
            os.close(wait)
            return
        code = 1
        try:
            os.close(self._go)
            if os.read(wait, 1):
                for name in ("gid_map", "uid_map"):
                    Path(f"/proc/{target}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
                code = 0
        except OSError:
            # The root user of a container may lack the right. The exit code reports that.
            code = 1
        finally:
            os._exit(code)

    def done(self) -> bool:
        """Have the mapping written now. Return whether the system permitted it."""
        os.write(self._go, b"1")
        os.close(self._go)
        return os.waitpid(self._pid, 0)[1] == 0


def build_root() -> list[str]:
    """Build a new root of what programs may read, and let go of the old one. Return the files for
    `mount_home`: the parts of a Python that lies below HOME."""
    visible = _visible()
    hidden = [path for path in visible if path.startswith(f"{HOME}/")]
    # Programs are another user than the service, whose own files are closed to other users.
    os.umask(0o022)
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    _mount_empty(HOME)
    os.makedirs(f"{HOME}/old")
    linux.pivot_root(HOME, f"{HOME}/old")
    os.makedirs("/new")
    _mount_empty("/new")
    for path in visible:
        _show(f"/old{path}", f"/new{_BELOW_HOME if path in hidden else ''}{path}")
    for name in _DEVICES:
        _show(f"/old/dev/{name}", f"/new/dev/{name}")
    os.mkdir(f"/new{HOME}")
    # POSIX semaphores and shared memory are files there.
    os.symlink(HOME, "/new/dev/shm")
    linux.make_read_only("/new")
    os.chdir("/new")
    # pivot_root(2): the old root ends up on top of the new one, at the same place.
    linux.pivot_root(".", ".")
    linux.detach(".")
    os.chdir("/")
    return hidden


def mount_home(size: int, hidden: Sequence[str]) -> None:
    """Give this process's mount namespace an empty folder for files. The folder shows the parts of
    Python that it would hide."""
    options = f"size={size},nr_inodes=4096,mode=0777"
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("tmpfs", HOME, "tmpfs", flags, options)
    for path in hidden:
        _show(f"{_BELOW_HOME}{path}", path)


def _mount_empty(target: str) -> None:
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", target, "tmpfs", flags, "size=1M,mode=0755")


def _show(source: str, target: str) -> None:
    """Make the file or folder `source` visible as `target`."""
    old, new = Path(source), Path(target)
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_symlink():
        new.symlink_to(os.readlink(old))
        return
    if old.is_dir():
        new.mkdir(exist_ok=True)
    else:
        new.touch()
    linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)


def _visible() -> list[str]:
    """Return the folders of this interpreter's library and of the system's libraries."""
    python = [f"{sys.base_prefix}/lib", f"{sys.prefix}/lib", *sys.path]
    folders: list[str] = []
    for path in [*_SYSTEM, *map(os.path.abspath, python)]:
        below = any(path == folder or path.startswith(f"{folder}/") for folder in folders)
        if os.path.exists(path) and not below:
            folders.append(path)
    return folders
