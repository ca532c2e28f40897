"""`headrace doctor` says what is wrong with a machine, and how to mend it."""

import socket
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import root
from services.cli.host import checks
from services.cli.host.checks import FAIL, OK, WARN, Finding
from services.runtime import gpus
from services.runtime.gpus import GPU, GPUsUnknown


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.subject: finding.level for finding in findings}


def test_a_data_folder_is_judged_by_its_rights_and_its_disk(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    assert levels(list(checks.data(mine, "")))["data folder"] == OK
    mine.mkdir(mode=0o755)
    mine.chmod(0o755)
    (folder, disk) = checks.data(mine, ", which HEADRACE_DATA names")
    assert (folder.level, folder.mend) == (
        WARN,
        f"other users can look into it: chmod 700 {mine}",
    )
    assert "which HEADRACE_DATA names" in folder.text
    assert disk.subject == "disk"
    (tmp_path / "file").write_text("")
    (finding,) = checks.data(tmp_path / "file" / "inner", "")
    assert (finding.level, "is no folder" in finding.text) == (FAIL, True)


def test_a_redis_that_does_not_answer_fails_and_hides_its_password(tmp_path: Path) -> None:
    (finding,) = checks.redis("redis://:secret@127.0.0.1:1/0", tmp_path)
    assert (finding.level, "secret" in finding.text) == (FAIL, False)
    assert "unset HEADRACE_REDIS_URL" in finding.mend
    (own,) = checks.redis(None, tmp_path)
    assert own.level == OK
    assert "which `headrace up` starts" in own.text


def test_a_taken_port_is_named_with_the_flag_for_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = next(checks.ports(f"http://127.0.0.1:{port}"))
    assert levels(list(checks.gateway("http://127.0.0.1:1", Path())))["gateway"] == OK
    assert first.level == WARN
    assert f"{port} (gateway)" in first.text
    assert "--port PORT" in first.mend


def test_doctor_imports_no_file_of_the_folder_where_its_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    (finding,) = checks.sandbox()
    assert "import" not in finding.text
    assert "reward" not in finding.text


@pytest.mark.parametrize(("seconds", "level"), [(0.5, OK), (-1.9, OK), (3.0, WARN), (-60, WARN)])
def test_clocks_that_differ_by_two_seconds_are_a_warning(seconds: float, level: str) -> None:
    assert checks.clock("redis", seconds).level == level


def test_doctor_names_the_build_and_the_gpus_of_a_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_driver() -> list[GPU]:
        raise GPUsUnknown("no nvidia-smi")

    monkeypatch.setattr(gpus, "listed_gpus", no_driver)
    for build, level in (("cpu", OK), ("cuda", FAIL)):
        monkeypatch.setattr(gpus, "installed_device", lambda build=build: build)
        assert next(checks.gpus()).level == level
    monkeypatch.setattr(gpus, "listed_gpus", lambda: [GPU("0", "a"), GPU("1", "b")])
    monkeypatch.setattr(gpus, "installed_device", lambda: "cpu")
    (finding,) = checks.gpus()
    assert (finding.level, finding.text) == (WARN, "2 GPUs, and vLLM's build for the CPU")


@pytest.mark.parametrize(
    ("code", "level", "text"),
    [(0, OK, "2 ranks add 67 MB in 3.1 ms"), (1, FAIL, "do not reach each other: no peer")],
)
def test_ranks_that_do_not_reach_each_other_fail(
    code: int, level: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], code, "2 ranks add 67 MB in 3.1 ms\n", "x\nno peer\n")
    monkeypatch.setattr(checks, "_run", lambda command: done)
    finding = checks.ranks(2, "nccl")
    assert finding.level == level
    assert text in finding.text
    assert bool(finding.mend) == (level == FAIL)


def test_the_exit_code_says_whether_a_check_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = lambda *_: iter([Finding("x", WARN, "so", "do this")])  # noqa: E731
    for name in ("versions", "gpus", "host", "redis", "gateway", "sandbox"):
        monkeypatch.setattr(checks, name, quick)
    began = time.monotonic()
    result = CliRunner().invoke(root, ["doctor", "--data", str(tmp_path / "new")])
    assert result.exit_code == 0
    assert "warn  x" in result.stdout
    assert "→ do this" in result.stdout
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(root, ["doctor", "--data", str(tmp_path / "file"), "-o", "json"])
    assert result.exit_code == 1
    assert time.monotonic() - began < 10
