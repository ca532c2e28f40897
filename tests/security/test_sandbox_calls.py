"""A program may use some system calls, and Python needs only these."""

import ctypes
import os
import sys
from collections.abc import Iterator

import pytest

from reward.sandbox.sandbox_host import Sandbox, SandboxOptions
from tests.security.sandboxes import run


@pytest.fixture(scope="module")
def with_packages(sandbox: Sandbox) -> Iterator[Sandbox]:
    """With the packages of these tests; `HEADRACE_CODE_PYTHON` names another interpreter."""
    own = f"{os.path.realpath(sys.prefix)}/bin/{os.path.basename(sys.executable)}"
    found = Sandbox(SandboxOptions(python=os.environ.get("HEADRACE_CODE_PYTHON", own)))
    yield found
    found.close()


@pytest.fixture
def filtered(sandbox: Sandbox) -> Sandbox:
    if not sandbox.filtered:
        pytest.skip("libseccomp is not installed")
    return sandbox


REFUSED = {
    "keyctl": "0, -3, 0",
    "add_key": "b'user', b'x', b'x', 1, -3",
    "userfaultfd": "1",
    "perf_event_open": "ctypes.create_string_buffer(128), 0, -1, -1, 0",
    "io_uring_setup": "8, ctypes.create_string_buffer(256)",
    "bpf": "0, ctypes.create_string_buffer(128), 128",
    "ptrace": "0, 0, 0, 0",
    "process_vm_readv": "PID, None, 0, None, 0, 0",
    "process_madvise": "0, None, 0, 4, 0",
    "kcmp": "PID, PID, 0, 0, 0",
    "personality": "0xffffffff",
    "mount": "b'none', b'/tmp', b'tmpfs', 0, None",
    "mount_setattr": "-100, b'/tmp', 0, ctypes.create_string_buffer(32), 32",
    "fsopen": "b'tmpfs', 0",
    "open_tree": "-100, b'/tmp', 0",
    "chroot": "b'/tmp'",
    "pivot_root": "b'/tmp', b'/tmp'",
    "unshare": "0",
    "setns": "0, 0",
    "clone3": "ctypes.create_string_buffer(64), 64",
    "setsid": "",
    "setuid": "0",
    "memfd_create": "b'x', 0",
    "memfd_secret": "0",
    "shmget": "0, 1 << 20, 0o1600",
    "msgget": "0, 0o1600",
    "mq_open": "b'x', 0o102, 0o600, None",
    "vmsplice": "1, None, 0, 0",
    "splice": "0, None, 1, None, 1, 0",
    "setxattr": "b'/tmp', b'user.x', b'x', 1, 0",
    "io_setup": "8, ctypes.create_string_buffer(8)",
    "inotify_init1": "0",
    "fanotify_init": "0, 0",
    "name_to_handle_at": "-100, b'/tmp', ctypes.create_string_buffer(128), b'0000', 0",
    "execve": "b'/lib64/ld-linux-x86-64.so.2', None, None",
    "sched_setaffinity": "0, 8, ctypes.create_string_buffer(b'\\1', 8)",
    "setpriority": "0, 0, 1",
    "sync": "",
    "prctl": "22, 0, 0, 0, 0",
    "fcntl": "1, 1031, 1 << 20",
    "ioctl": "0, 0x5412, b'x'",
}
CLONES = {"NEWUSER": 0x10000000, "NEWNS": 0x20000, "NEWPID": 0x20000000, "NEWNET": 0x40000000}


def number(call: str) -> int:
    """The number of a system call on this machine."""
    library = ctypes.CDLL("libseccomp.so.2")
    found: int = library.seccomp_syscall_resolve_name(call.encode())
    if found < 0:
        pytest.skip(f"libseccomp does not know {call} on this machine")
    return found


def result(sandbox: Sandbox, call: str, arguments: str) -> str:
    """Return the result of a program's call, and its error."""
    source = f"""
import ctypes, os
PID = os.getpid()
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
print(libc.syscall({number(call)}, {arguments or 0}), ctypes.get_errno())
"""
    ending = run(sandbox, source)
    assert ending.code == 0, ending
    return ending.output.decode().strip()


@pytest.mark.parametrize("call", REFUSED)
def test_a_call_that_is_not_listed_is_refused(filtered: Sandbox, call: str) -> None:
    assert result(filtered, call, REFUSED[call]) in ("-1 1", "-1 38")


@pytest.mark.parametrize("flag", CLONES)
def test_no_namespace_can_be_made(filtered: Sandbox, flag: str) -> None:
    assert result(filtered, "clone", f"{CLONES[flag] | 17}, 0, 0, 0, 0") == "-1 38"


@pytest.mark.parametrize("family", [2, 10, 16, 17, 38, 40, 21, 44])
def test_there_are_no_sockets_but_local_ones(filtered: Sandbox, family: int) -> None:
    """AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK, AF_RDS, AF_XDP."""
    assert result(filtered, "socket", f"{family}, 3, 0") == "-1 1"


@pytest.mark.parametrize("option", [7, 8, 32, 33])
def test_buffers_of_sockets_keep_their_size(filtered: Sandbox, option: int) -> None:
    source = f"import socket\nsocket.socketpair()[0].setsockopt(1, {option}, 1 << 24)"

    assert b"OSError: [Errno 38]" in run(filtered, source).errors


def test_record_locks_take_no_memory(filtered: Sandbox) -> None:
    source = """
import fcntl, os, struct
file = open("file", "w+b")
for start in range(0, 2000, 2):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, start)
fcntl.flock(file, fcntl.LOCK_EX)
if os.fork() == 0:
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, wanted))[0]
    try:
        fcntl.flock(open("file"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(kind)
print(os.wait()[1] >> 8 == fcntl.F_UNLCK)
"""
    assert run(filtered, source).output == b"True\n"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls of another architecture")
def test_calls_by_another_convention_end_the_program(filtered: Sandbox) -> None:
    """x32's `getpid`: numbers above 0x40000000 are not those that the filter compares."""
    ending = run(filtered, "import ctypes; print(ctypes.CDLL(None).syscall(0x40000000 + 39))")

    assert (ending.code, ending.output) == (-31, b"") or ending.output == b"-1\n"


CODE_FROM_TMP = {
    "a library": "ctypes.CDLL('/tmp/library.so')",
    "mapped": "mmap.mmap(os.open('/tmp/library.so', 0), 4096, 2, mmap.PROT_EXEC)",
    "started": "os.execv('/tmp/library.so', ['x'])",
}


@pytest.mark.parametrize("way", CODE_FROM_TMP)
def test_files_of_tmp_cannot_be_executed(sandbox: Sandbox, way: str) -> None:
    source = f"""
import ctypes, glob, mmap, os, shutil
shutil.copy(sorted(glob.glob("/lib/*/libz.so.1") + glob.glob("/lib*/libz.so.1"))[0], "library.so")
os.chmod("library.so", 0o755)
try:
    {CODE_FROM_TMP[way]}
    print("done")
except OSError as error:
    print("refused")
"""
    assert run(sandbox, source).output == b"refused\n"


USES = {
    "callbacks of C": """
import ctypes
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)
print(kind(lambda one, other: one + other)(1, 2))
""",
    "threads": """
import concurrent.futures, queue, threading
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(int, "12")))
""",
    "processes": """
import concurrent.futures, multiprocessing
forked = multiprocessing.get_context("fork")
with concurrent.futures.ProcessPoolExecutor(2, forked) as pool:
    print(sum(pool.map(int, "12")))
""",
    "queues between processes": """
import multiprocessing
forked = multiprocessing.get_context("fork")
queue, lock, pipe = forked.Queue(), forked.Lock(), forked.Pipe()
array, event = forked.Array("i", 3), forked.Event()
def work():
    with lock:
        array[0] = 1
    pipe[1].send([2])
    queue.put(event.wait())
process = forked.Process(target=work)
process.start()
event.set()
print(array[0] + pipe[0].recv()[0] if queue.get() and process.join() is None else 0)
""",
    "asyncio": """
import asyncio
async def one():
    await asyncio.sleep(.001)
    return await asyncio.to_thread(int, "1")
async def all_of_them():
    return sum(await asyncio.gather(one(), one(), one()))
print(asyncio.run(all_of_them()))
""",
    "signals": """
import signal, time
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(3))
signal.setitimer(signal.ITIMER_REAL, .001)
time.sleep(.02)
print(*seen)
""",
    "files": """
import os, pathlib, shutil, sqlite3, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "a").write_text("3")
shutil.copy2(folder / "a", folder / "b")
shutil.copytree(folder, "copy")
os.mkfifo("pipe")
sqlite3.connect("base").execute("create table t (x)")
shutil.move("copy", "moved")
print(open("moved/b").read())
shutil.rmtree(folder)
""",
    "mappings of files": """
import mmap
with open("file", "w+b") as file:
    file.write(bytes(4096))
    file.flush()
    with mmap.mmap(file.fileno(), 4096) as mapped:
        mapped[0] = 3
    file.seek(0)
    print(file.read(1)[0])
""",
    "the system": """
import getpass, locale, os, platform, random, resource, secrets, select, sys, time, uuid, zoneinfo
platform.platform(), uuid.uuid4(), secrets.token_hex(), time.get_clock_info("monotonic")
os.cpu_count(), os.getpriority(0, 0), os.umask(0o22), os.times(), os.uname()
resource.getrusage(0), resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 23))
sys.stdin.isatty(), sys.setrecursionlimit(10_000)
print(3)
""",
    "numpy": """
try:
    import numpy
except ImportError:
    print(3)
else:
    print(round(numpy.linalg.svd(numpy.eye(3))[1].sum()))
    numpy.random.default_rng().random((400, 400)) @ numpy.ones((400, 400))
""",
}


@pytest.mark.parametrize("use", USES)
def test_python_works_with_the_calls_that_are_listed(with_packages: Sandbox, use: str) -> None:
    ending = run(with_packages, USES[use], seconds=20, memory=1 << 30)

    assert (ending.errors, ending.output, ending.code) == (b"", b"3\n", 0)
