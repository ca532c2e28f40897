"""What the supervisor puts into the environment of a rank, and what it leaves to the user."""

import asyncio
from pathlib import Path

import pytest

from learner.supervise.nodes import Start
from learner.supervise.processes import RankProcesses, RankServer

TELLS = """
import os
from pathlib import Path
def main():
    Path(os.environ["TELL"]).write_text(os.environ["GOMP_SPINCOUNT"] + os.environ["RANK"])
"""


@pytest.mark.parametrize(("own", "given"), [(None, "1000"), ("77", "77")])
def test_threads_that_wait_soon_sleep_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, given: str
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if own is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", own)
    (tmp_path / "telling_rank.py").write_text(TELLS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = {"TELL": str(tmp_path / "told")}
    server = RankServer(["telling_rank"])
    ranks = RankProcesses(Start("id", 3, 1, 4, "nowhere", told), server)

    async def run() -> None:
        await ranks.spawn(0)
        await asyncio.wait(ranks.running)
        await server.close()

    asyncio.run(run())
    assert ranks.codes == [0]
    assert (tmp_path / "told").read_text() == given + "3"
