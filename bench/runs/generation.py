"""Part `generation`: the rollout worker against vLLM's offline `LLM.generate`, alternating.

Worker: the real one, in a run whose first batch never fills, so that the learner stays idle. Its
groups count when they have arrived in Redis: generated, scored and complete. Offline: a warm
process (`offline`) with the same weights, options, cores, prompts and sampling. They take turns.
"""

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.installation import BenchFailed, Installation
from bench.runs.workload import CONTEXT, NEW_TOKENS, PROMPTS, SAMPLES, SEQUENCES, generation_config
from rollout.settings import RolloutSettings
from rollout.vllm.options import environment
from rollout.vllm.response import sampling_params
from rollout.vllm.server import make_server_folder
from services.contracts.config.rollout import Sampling
from services.contracts.groups.trajectory import TrajectoryGroup, decode
from services.launch.cores import bound_to, place_here
from services.runtime.gpus import installed_device
from services.runtime.process import die_with
from services.store import Store

LIMIT_SECONDS = 240.0
"""Longest wait for one answer of either side."""
Stretch = tuple[int, float]
"""Tokens, and the seconds of wall time in which they were generated."""


def measure(
    installation: Installation, model: str, weights: Path, quick: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Rounds of worker, then offline: one of 2 waves of prompts if `quick`, else two of 4. Raises
    BenchFailed."""
    rounds, waves = (1, 2) if quick else (2, 4)
    sides: dict[str, list[Stretch]] = {"worker": [], "offline": []}
    with contextlib.ExitStack() as stack:
        offline: Offline | None = None
        for number in range(1, rounds + 1):
            say(f"generation, round {number} of {rounds}")
            groups = from_worker(installation, model, waves)
            finished = [(int(g.lengths.sum()), g.header.generated_at) for g in groups]
            sides["worker"].append(departures(finished, PROMPTS, PROMPTS * waves))
            prompts = [g.prompt_tokens.tolist() for g in groups[: PROMPTS * waves]]
            if offline is None:
                offline = Offline(weights, installation.data / "logs" / "offline.log")
                stack.callback(offline.close)
            offline.generate(prompts[:PROMPTS])
            sides["offline"].append(offline.generate(prompts))
    worker, reference = (rate(found) for found in sides.values())
    return {
        "worker_tokens_per_second": worker,
        "offline_tokens_per_second": reference,
        "ratio": worker / reference,
        "rounds": {side: [rate([one]) for one in found] for side, found in sides.items()},
    }


def departures(groups: Sequence[tuple[int, float]], skip: int, count: int) -> Stretch:
    """`count` groups, in the order they were finished, after `skip` to warm up.

    groups: (tokens, generated at). The time runs from the end of the last skipped group to the end
    of the last counted one: work that began before the window and work left unfinished after it
    cancel out. Raises ValueError if there are too few.
    """
    if len(groups) < skip + count:
        raise ValueError(f"{len(groups)} groups were generated; {skip} + {count} are needed")
    ordered = sorted(groups, key=lambda group: group[1])
    window = ordered[skip : skip + count]
    return sum(tokens for tokens, _ in window), window[-1][1] - ordered[skip - 1][1]


def rate(stretches: Sequence[Stretch]) -> float:
    """Tokens/s of several stretches: all tokens over all seconds."""
    return sum(tokens for tokens, _ in stretches) / sum(seconds for _, seconds in stretches)


def from_worker(installation: Installation, model: str, waves: int) -> list[TrajectoryGroup]:
    """The first tasks' groups: 32 to warm up, `waves` · 32, and 32 more, since a group that
    overtakes others is at most as many tasks ahead as there are in flight."""
    positions = list(range(PROMPTS * (waves + 2)))
    with installation.running("demo_grpo", "generation", generation_config(model)) as run:
        return [decode(blob) for blob in asyncio.run(_arrived(installation, run, positions))]


async def _arrived(installation: Installation, run: str, positions: list[int]) -> list[bytes]:
    """The groups of these tasks, once all are there."""
    store = Store.from_url(installation.stack.redis_url)
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while True:
            # The last first: asking for all would fetch megabytes in vain.
            if None not in await store.trajectories.payloads(run, positions[-1:]):
                found = await store.trajectories.payloads(run, positions)
                there = [payload for payload in found if payload is not None]
                if len(there) == len(positions):
                    return there
            installation.stack.check()
            if time.monotonic() > deadline:
                raise BenchFailed(
                    f"the worker did not complete {len(positions)} tasks within "
                    f"{LIMIT_SECONDS:.0f} s; logs: {installation.data / 'logs'}"
                )
            await asyncio.sleep(0.5)
    finally:
        await store.close()


class Offline:
    """The process of `bench.runs.offline`. Use `close`."""

    def __init__(self, weights: Path, log: Path) -> None:
        """Start it and wait until it has loaded `weights`. Raises BenchFailed."""
        self._log = log
        inherited = {**_cores(), **os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        kv_cache = RolloutSettings(_cli_parse_args=False).vllm_kv_cache_gib
        self._folder = make_server_folder()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.runs.offline"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment(inherited, installed_device(), kv_cache, self._folder),
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        try:
            self._ask(engine_options(weights))
        except BaseException:
            self.close()
            raise

    def generate(self, prompts: list[list[int]]) -> Stretch:
        """All samples of `prompts`, handed over at once. Raises BenchFailed."""
        answer = self._ask({"prompts": prompts, "sampling": sampling()})
        return answer["tokens"], answer["seconds"]

    def close(self) -> None:
        """End the process and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = b""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
            if select.select([stdout], [], [], LIMIT_SECONDS)[0]:
                line = stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
            raise BenchFailed(f"LLM.generate gave no answer. The end of {self._log}:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def engine_options(weights: Path) -> dict[str, Any]:
    """`LLM`'s arguments: those of the worker's server (`rollout.vllm.options.command_line`)."""
    return {
        "model": str(weights),
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "max_num_seqs": SEQUENCES,
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": installed_device() == "cpu",
    }


def sampling() -> dict[str, Any]:
    """`SamplingParams` as the worker sends them."""
    params = sampling_params(Sampling(max_tokens=NEW_TOKENS, ignore_eos=True), [], CONTEXT)
    return {**params, "n": SAMPLES, "logprobs": 0, "detokenize": False}


def _cores() -> dict[str, str]:
    """The core placement of the installation's worker."""
    plan = place_here(1, 1)
    return bound_to(plan.rollouts[0]) if plan is not None else {}
