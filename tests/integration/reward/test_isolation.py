"""The sandbox shows programs nothing of this machine. Every attack runs for real."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward.sandbox.sandbox_host import ROOT, Sandbox, SandboxOptions
from tests.integration.reward.conftest import alive
from tests.integration.reward.sandboxes import run, zygote

pytestmark = pytest.mark.usefixtures("isolation")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    found = Sandbox(SandboxOptions())
    yield found
    found.close()


def test_no_file_of_the_host_can_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "link").symlink_to(secret)
    depth = "../" * 12
    places = [
        "/etc/passwd", "/etc/shadow", "/proc/1/environ", "/proc/self/root/etc/passwd",
        "/proc/1/cwd", "/sys/kernel", "/dev/sda", "/dev/mem", "/var/log", "/home", "/old",
        str(secret), str(tmp_path / "link"), f"{depth}{secret}", f"/tmp/{depth}etc/passwd",
        f"/dev/shm/{depth}etc/passwd", __file__, str(ROOT / "pyproject.toml"),
    ]  # fmt: skip
    source = """
import json, os
def reached(place):
    for look in (open, os.listdir):
        try:
            look(place)
            return True
        except OSError:
            pass
    os.symlink(place, "link")
    try:
        open("link")
        return True
    except OSError:
        return False
    finally:
        os.unlink("link")
print([place for place in json.loads(input()) if reached(place)])
"""
    ending = run(sandbox, source, json.dumps(places))

    assert (ending.output, ending.errors) == (b"[]\n", b"")


def test_nothing_can_be_written_but_in_its_own_folder(sandbox: Sandbox) -> None:
    source = """
import os, sys, sysconfig
def wrote(place):
    try:
        with open(place, "a"):
            return True
    except OSError:
        return False
places = ["/file", "/dev/file", "/etc/file", "/usr/lib/file", os.__file__,
          sysconfig.get_path("stdlib") + "/file", "/tmp/../file", "/dev/shm/own", "own"]
print([place for place in places if wrote(place)])
"""
    assert run(sandbox, source).output == b"['/dev/shm/own', 'own']\n"
    assert run(sandbox, "import os; print(os.listdir('/tmp'))").output == b"[]\n"


def test_programs_have_an_empty_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_SECRET", "x7Secret7x")
    own = Sandbox(SandboxOptions())
    source = """
import ctypes, gc, os
libc = ctypes.CDLL(None)
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
print(sorted(os.environ), [v for v in iter(lambda n=iter(range(99)): environ[next(n)], None)])
"""
    try:
        ending = run(own, source)
    finally:
        own.close()

    assert b"x7Secret7x" not in ending.output
    assert ending.output.startswith(b"['HOME', 'LANG', 'PATH', 'TMPDIR']")


def test_a_program_sees_no_other_processes(sandbox: Sandbox) -> None:
    source = """
import os
def there(pid):
    try:
        os.kill(pid, 0)
        return True
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
print([pid for pid in range(1, 100_000) if there(pid)], os.getpid(), os.getppid())
"""
    assert run(sandbox, source).output == b"[1, 2] 2 1\n"


def test_its_parent_cannot_be_killed(sandbox: Sandbox) -> None:
    source = """
import os, signal
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGSEGV):
    for target in (os.getppid(), -1):
        try:
            os.kill(target, number if target > 0 else 0)
        except OSError:
            pass
print("still here")
"""
    ending = run(sandbox, source)

    assert (ending.code, ending.output) == (0, b"still here\n")
    assert alive(zygote(sandbox))


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET"])
def test_a_program_cannot_connect_anywhere(sandbox: Sandbox, family: str) -> None:
    ending = run(sandbox, f"import socket; socket.socket(socket.{family}, socket.SOCK_DGRAM)")

    assert b"PermissionError" in ending.errors


def test_without_the_filter_too_the_network_is_empty(sandbox: Sandbox) -> None:
    """Abstract names and ports belong to the network namespace, not to the filter."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0headrace-test")
        server.listen()
        ending = run(
            sandbox,
            "import socket; socket.socket(socket.AF_UNIX).connect('\\0headrace-test')",
        )

    assert b"ConnectionRefusedError" in ending.errors


CALLS = {
    "unshare(CLONE_NEWUSER)": "libc.unshare(0x10000000)",
    "clone(CLONE_NEWUSER)": "libc.syscall(56, 0x10000011, 0, 0, 0, 0)",
    "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "umount": "libc.umount2(b'/tmp', 2)",
    "chroot": "libc.chroot(b'/tmp')",
    "ptrace of its parent": "libc.ptrace(16, 1, None, None)",
    "setuid": "libc.setuid(0)",
    "setresuid": "libc.setresuid(0, 0, 0)",
    "reboot": "libc.reboot(0)",
    "sethostname": "libc.sethostname(b'x', 1)",
    "bpf": "libc.syscall(321, 0, None, 0)",
    "io_uring_setup": "libc.syscall(425, 8, None)",
    "mknod of a disk": "libc.mknod(b'/tmp/disk', 0o60666, 0x800)",
    "read of its parent's memory": "libc.process_vm_readv(1, None, 0, None, 0, 0)",
    "memory that no limit counts": "libc.memfd_create(b'x', 0)",
    "shared memory that no limit counts": "libc.shmget(0, 1 << 20, 0o1600)",
    "more processes": "libc.syscall(302, 0, 6, (ctypes.c_uint64 * 2)(9999, 9999), None)",
    "more memory": "libc.syscall(302, 0, 9, (ctypes.c_uint64 * 2)(1 << 40, 1 << 40), None)",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_the_kernel_refuses_what_ctypes_asks_for(sandbox: Sandbox, call: str) -> None:
    source = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint({call})"

    assert run(sandbox, source).output == b"-1\n"
