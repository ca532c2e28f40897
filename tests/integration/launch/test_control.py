"""Commands explain why a `headrace up` does not answer."""

import json
import secrets
import socket
import threading
from pathlib import Path

import pytest

from services.launch import LaunchError
from services.launch.control import ask
from services.launch.data_folder import DataFolder

REQUEST = {"scale": {"rollout": 2}}


def test_a_headrace_up_that_does_not_answer_is_starting_or_stopping(
    tmp_path: Path,
) -> None:
    with (
        DataFolder(tmp_path),
        pytest.raises(LaunchError, match=r"\(pid \d+\) .* is still starting, or is stopping"),
    ):
        ask(tmp_path, REQUEST, print)


def test_an_unlocked_folder_has_no_headrace_up(tmp_path: Path) -> None:
    with DataFolder(tmp_path):
        pass
    with pytest.raises(LaunchError, match=r"^no `headrace up` runs on the data folder"):
        ask(tmp_path, REQUEST, print)


@pytest.mark.parametrize("answer", [b"", b'{"sa'])
def test_a_headrace_up_that_ends_during_a_request_is_reported(
    tmp_path: Path, answer: bytes
) -> None:
    instance = secrets.token_hex(8)
    (tmp_path / "up.json").write_text(json.dumps({"instance": instance}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(f"\0headrace-up-{instance}")
        server.listen()

        def hang_up() -> None:
            link, _ = server.accept()
            # The request lies unread: to the other end that is a reset, not an end.
            link.recv(1, socket.MSG_PEEK)
            link.sendall(answer)
            link.close()

        ending = threading.Thread(target=hang_up)
        ending.start()
        try:
            with pytest.raises(LaunchError, match="`headrace up` ended before it answered"):
                ask(tmp_path, REQUEST, print)
        finally:
            ending.join()
