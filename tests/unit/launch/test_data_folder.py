"""The data folder of an installation that does not start."""

import socket
from pathlib import Path

import pytest

from services.launch import LaunchError, Stack, UpOptions


def test_a_refused_start_leaves_no_new_folder_and_keeps_one_that_was_there(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        for data in (tmp_path / "new", before):
            options = UpOptions(data=data, port=server.getsockname()[1], reward_port=0)
            with pytest.raises(LaunchError, match="is in use: stop what listens there"):
                Stack(options).__enter__()
    assert not (tmp_path / "new").exists()
    assert before.is_dir()
