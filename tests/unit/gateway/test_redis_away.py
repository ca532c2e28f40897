"""The gateway's answer while Redis is away."""

import shutil
from pathlib import Path

import pytest

from services.gateway import problems
from services.gateway.problems import redis_away


def test_a_full_disk_is_named_where_redis_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert redis_away(tmp_path).startswith("Redis cannot be reached: ")
    assert redis_away(tmp_path / "missing").startswith("Redis cannot be reached: ")

    monkeypatch.setattr(problems, "REDIS_RESERVE", shutil.disk_usage(tmp_path).total + 1)
    words = redis_away(tmp_path)
    assert words.startswith("the disk is full: ")
    assert f"free on the data volume {tmp_path}" in words
