"""Lines of vLLM's log on their way to the run's log."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.vllm.process import log_follower
from rollout.vllm.process.log_follower import OUTPUT, follow, pass_on_to
from services.runtime.log_lines import LogLines


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogLines]:
    monkeypatch.setattr(log_follower, "EVERY_SECONDS", 0.01)
    lines = LogLines("rollout/w1")
    pass_on_to(lines)
    yield lines
    OUTPUT.removeHandler(lines)


async def test_lines_come_with_their_level_until_the_last_words(
    lines: LogLines, tmp_path: Path
) -> None:
    log = tmp_path / "vllm-w1.log"
    log.write_text(
        "INFO 11-28 10:00:00 [api_server.py:1] Starting\n"
        "Loading:  50%\rLoading: 100%\n\n"
        "INFO 11-28 10:00:00 [launcher.py:47] Route: /v1/models, Methods: GET\n"
        "(EngineCore pid=7) ERROR 11-28 10:00:01 [core.py:9] CUDA out of memory\n"
        "  more about it\nhalf a "
    )
    has_ended = False
    following = asyncio.create_task(follow(log, "vllm/w1", lambda: has_ended))
    assert await asyncio.to_thread(lines.arrived.wait, 5)
    taken = lines.take()
    with log.open("a") as file:
        file.write("line --api-key hush")
    has_ended = True
    await following
    taken += lines.take()

    assert [(line.level, line.text) for line in taken] == [
        ("info", "Starting"),
        ("info", "Loading: 100%"),
        ("error", "EngineCore: CUDA out of memory"),
        ("error", "  more about it"),
        ("error", "half a line --api-key ***"),
    ]
    assert {line.process for line in taken} == {"vllm/w1"}
    assert logging.getLogger("headrace.vllm-output").propagate is False
