"""Variables that the supervisor puts into the environment of a rank, and those that it leaves to
the user."""

import asyncio
from pathlib import Path

import pytest

from learner.supervise.rank_processes import RankProcesses

TELLS = """
import os
from pathlib import Path
def main():
    names = ("RANK", "GOMP_SPINCOUNT", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    Path(os.environ["TELL"]).write_text(" ".join(os.environ.get(name, "-") for name in names))
"""


@pytest.mark.parametrize(
    ("own", "given"),
    [
        ({}, "0 1000 - expandable_segments:True"),
        ({"GOMP_SPINCOUNT": "77"}, "0 77 - expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, "0 1000 - backend:native"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "0 1000 backend:native -"),
    ],
)
def test_threads_soon_sleep_and_segments_expand_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], given: str
) -> None:
    for name in ("GOMP_SPINCOUNT", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "telling_rank.py").write_text(TELLS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TELL", str(tmp_path / "told"))
    ranks = RankProcesses(["telling_rank"], 1)

    async def run() -> None:
        await ranks.spawn(0)
        await asyncio.wait(ranks.running)
        await ranks.close()

    asyncio.run(run())
    assert ranks.codes == [0]
    assert (tmp_path / "told").read_text() == given
