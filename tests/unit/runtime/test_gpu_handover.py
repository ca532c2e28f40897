"""Learner and vLLM use a GPU in turn."""

import asyncio
import subprocess
import sys
from pathlib import Path

from services.runtime.gpu_handover import Handover

HOLD = """
import sys
from pathlib import Path
from services.runtime.gpu_handover import Handover
one = Handover(Path(sys.argv[1]), "gpu")
assert one.begin_to_train(lambda: True)
print("has it", flush=True)
sys.stdin.read()
"""


def never() -> bool:
    return False


def at_once() -> bool:
    return True


async def test_the_learner_gets_the_gpu_when_vllm_has_left_it(tmp_path: Path) -> None:
    learner, worker = Handover(tmp_path, "gpu"), Handover(tmp_path, "gpu")
    await worker.begin_to_sample()
    assert not worker.wanted
    assert not learner.begin_to_train(at_once)
    # It has given up, and wants nothing.
    assert not worker.wanted

    training = asyncio.create_task(asyncio.to_thread(learner.begin_to_train, never))
    async with asyncio.timeout(60):
        while not worker.wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not training.done()
    worker.leave()
    assert await training

    sampling = asyncio.create_task(worker.begin_to_sample())
    await asyncio.wait({sampling}, timeout=0.2)
    assert not sampling.done()
    assert worker.wanted
    learner.leave()
    await sampling
    assert not worker.wanted
    for one in (learner, worker):
        one.close()


async def test_another_worker_on_the_gpu_waits_until_the_first_has_no_vllm(tmp_path: Path) -> None:
    first, second = Handover(tmp_path, "gpu"), Handover(tmp_path, "gpu")
    await first.begin_to_sample()
    # Asleep, with groups in flight that no other worker samples.
    first.leave()
    waiting = asyncio.create_task(second.begin_to_sample())
    await asyncio.wait({waiting}, timeout=0.2)
    assert not waiting.done()
    first.close()
    await waiting
    second.close()


def test_a_killed_learner_holds_no_lock(tmp_path: Path) -> None:
    worker = Handover(tmp_path, "gpu")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as learner:
        assert learner.stdout is not None
        assert learner.stdout.readline() == b"has it\n"
        assert worker.wanted
        learner.kill()
    asyncio.run(worker.begin_to_sample())
    assert not worker.wanted
    worker.close()
