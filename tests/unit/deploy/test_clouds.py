"""The files for clouds: a notice of preemption ends the workers, and their settings are real."""

import os
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from headrace.variables import SETTINGS

DEPLOY = Path(__file__).parents[3] / "deploy"
SKYPILOT: dict[str, Any] = yaml.safe_load((DEPLOY / "skypilot" / "workers.yaml").read_text())
CLOUD_INIT: dict[str, Any] = yaml.safe_load((DEPLOY / "cloud-init" / "worker.yaml").read_text())
FILES = {Path(file["path"]).name: file["content"] for file in CLOUD_INIT["write_files"]}
AWS, GOOGLE, AZURE = (
    "/latest/meta-data/spot/instance-action",
    "/computeMetadata/v1/instance/preempted",
    "/metadata/scheduledevents?api-version=2020-07-01",
)
TAKEN = {
    AWS: '{"action": "terminate"}',
    GOOGLE: "TRUE",
    AZURE: '{"Events": [{"EventType": "Preempt"}]}',
}
STAYS = {GOOGLE: "FALSE", AZURE: '{"Events": [{"EventType": "Reboot"}]}'}


class Metadata(BaseHTTPRequestHandler):
    """The metadata service of a cloud."""

    answers: dict[str, str]
    asked: list[str]

    def _answer(self) -> None:
        self.asked.append(self.path)
        text = (
            "token"
            if self.command == "PUT" and AWS in self.answers
            else self.answers.get(self.path)
        )
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    do_GET = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[tuple[type[Metadata], str]]:
    kind = type("OfThisTest", (Metadata,), {"answers": {}, "asked": []})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield kind, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("cloud", [AWS, GOOGLE, AZURE], ids=["aws", "google", "azure"])
def test_a_notice_of_each_cloud_ends_the_workers(
    cloud: str, metadata: tuple[type[Metadata], str], tmp_path: Path
) -> None:
    service, address = metadata
    service.answers = {path: text for path, text in STAYS.items() if path == cloud}
    (tmp_path / "headrace-notice").write_text(FILES["headrace-notice"])
    systemctl = tmp_path / "systemctl"
    systemctl.write_text('#!/bin/sh\necho "$@"\n')
    systemctl.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "METADATA": address, "PAUSE": "0"}
    with subprocess.Popen(
        ["bash", str(tmp_path / "headrace-notice")], env=environment, stdout=subprocess.PIPE
    ) as watching:
        while len(service.asked) < 8:
            assert watching.poll() is None
        service.answers = {cloud: TAKEN[cloud]}
        assert watching.stdout is not None
        assert watching.stdout.read() == b"stop headrace-worker@*\n"


def test_workers_in_clouds_are_given_settings_that_workers_read() -> None:
    lines = [line.partition("=")[0] for line in FILES["worker.env"].splitlines()]
    assert {*lines, *SKYPILOT["envs"], *SKYPILOT["secrets"]} <= SETTINGS
    assert "HEADRACE_WORKER_CLASS=spot" in FILES["worker.env"]
    assert SKYPILOT["envs"]["HEADRACE_WORKER_CLASS"] == "spot"
    # No key has a value: SkyPilot refuses the task until each is given.
    assert set(SKYPILOT["secrets"].values()) == {None}


def test_a_shutdown_of_a_skypilot_instance_ends_each_worker(tmp_path: Path) -> None:
    """With a stand-in for the worker that says when it gets SIGTERM."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/bash\n"
        "trap 'echo ended $CUDA_VISIBLE_DEVICES; exit 0' TERM\n"
        "echo up; while :; do read -t 1 <> <(:); done\n"
    )
    python.chmod(0o755)
    environment = {**os.environ, "SKYPILOT_NUM_GPUS_PER_NODE": "2"}
    with subprocess.Popen(
        ["bash", "-c", SKYPILOT["run"]],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as task:
        assert task.stdout is not None
        assert [task.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        task.terminate()
        assert sorted(task.stdout.read().splitlines()) == ["ended 0", "ended 1"]
