"""Free memory, idle cores and the memory of a process tree, as the kernel tells them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.host_load import IdleCores, free_memory, memory_of, vllm_cores

MIB = 1 << 20


def machine(folder: Path, available_mib: int) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "meminfo").write_text(
        f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   {available_mib * 1024} kB\n"
    )
    return folder


def container(folder: Path, limit: str, used_mib: int, cached_mib: int) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used_mib * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached_mib * MIB}\n")
    return folder


def test_free_memory_is_what_the_machine_has_or_what_the_container_may_still_take(
    tmp_path: Path,
) -> None:
    proc = machine(tmp_path / "proc", available_mib=800)
    assert free_memory(proc, tmp_path / "none") == 800 * MIB
    unlimited = container(tmp_path / "unlimited", "max", 100, 10)
    assert free_memory(proc, unlimited) == 800 * MIB
    limited = container(tmp_path / "limited", str(500 * MIB), 300, 50)
    assert free_memory(proc, limited) == 250 * MIB


def test_the_memory_of_a_process_counts_its_children() -> None:
    child = "import sys; held = bytearray(64 << 20); print('held', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        found = memory_of(process.pid)
        process.stdin.close()
    assert 64 * MIB <= found < 128 * MIB
    assert memory_of(process.pid) == 0


def test_idle_cores_are_counted_among_the_given_cores(tmp_path: Path) -> None:
    def stat(*idle: int) -> None:
        lines = [f"cpu{core} 1 1 1 {ticks} 0 0 0 0 0 0" for core, ticks in enumerate(idle)]
        (tmp_path / "stat").write_text("\n".join(["cpu 4 4 4 0 0 0", *lines, "intr 5"]))

    stat(0, 0, 0)
    meter = IdleCores([0, 1], tmp_path)
    assert meter.since_last() == 0.0
    stat(10**9, 10**9, 10**9)
    assert meter.since_last() == 2.0


@pytest.mark.parametrize(
    ("bound", "cores"), [("0,2", [0, 2]), ("1-3,5", [1, 2, 3, 5]), ("nobind", None), ("", None)]
)
def test_vllm_computes_on_the_cores_that_it_is_bound_to(
    monkeypatch: pytest.MonkeyPatch, bound: str, cores: list[int] | None
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", bound)
    assert vllm_cores() == (cores or sorted(os.sched_getaffinity(0)))
