"""Part `generation`: the rollout worker against vLLM's offline `LLM.generate`, in turns.

The worker is the real one. Its run has a first batch that never fills, so the learner stays idle. A
group counts when it is complete: generated, scored, and stored in Redis. The offline side is a warm
process (`offline`) with the same weights, options, cores, prompts and sampling.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.installation import Installation, failures
from bench.runner import BenchFailed, BenchPart, Figures
from bench.workload import CONTEXT, NEW_TOKENS, PROMPTS, SAMPLES, SEQUENCES, generation_config
from headrace.death_signal import die_with
from rollout.settings import RolloutSettings
from rollout.vllm.client.response import sampling_params
from rollout.vllm.process.options import environment
from rollout.vllm.process.server import make_server_folder
from services.contracts.config.rollout import Sampling
from services.contracts.groups.trajectory import TrajectoryGroup, decode
from services.launch.cores import bound_to, place_here
from services.runtime.gpus import installed_device
from services.store import Store

LIMIT_SECONDS = 240.0
"""Longest wait for one answer of either side."""
Stretch = tuple[int, float]
"""Tokens, and the wall-clock seconds in which they were generated."""


@contextmanager
def generation_part(
    installation: Installation, model: str, weights: Path, quick: bool
) -> Iterator[BenchPart]:
    """Both sides: rounds of the worker, then offline: two of 4 waves of prompts, or one of 2."""
    rounds, waves = (1, 2) if quick else (2, 4)
    prompts: list[list[int]] = []
    with ExitStack() as stack:
        started: list[Offline] = []

        def worker() -> Figures:
            groups = from_worker(installation, model, waves)
            prompts[:] = [group.prompt_tokens.tolist() for group in groups[: PROMPTS * waves]]
            finished = [(int(g.lengths.sum()), g.header.generated_at) for g in groups]
            return rate(departures(finished, PROMPTS, PROMPTS * waves))

        def offline() -> Figures:
            if not prompts:
                raise BenchFailed("there are no prompts, since the worker was not measured")
            if not started:
                log = installation.data / "logs" / "offline.log"
                started.append(Offline(weights, log))
                stack.callback(started[0].close)
            started[0].generate(prompts[:PROMPTS])
            return rate(started[0].generate(prompts))

        sides = {"rollout worker": worker, "LLM.generate": offline}
        yield BenchPart("generation", sides, rounds, ratio=("rollout worker", "LLM.generate"))


def departures(groups: Sequence[tuple[int, float]], skip: int, count: int) -> Stretch:
    """Count `count` groups in the order they were finished, after `skip` to warm up.

    `groups`: (tokens, generated at). The time runs from the end of the last skipped group to the
    end of the last counted one: work that began before the window and work left unfinished after
    it cancel out. Raise ValueError if there are too few groups.
    """
    if len(groups) < skip + count:
        raise ValueError(f"{len(groups)} groups were generated; {skip} + {count} are needed")
    ordered = sorted(groups, key=lambda group: group[1])
    window = ordered[skip : skip + count]
    return sum(tokens for tokens, _ in window), window[-1][1] - ordered[skip - 1][1]


def rate(stretch: Stretch) -> dict[str, float]:
    tokens, seconds = stretch
    return {"tokens/s": tokens / seconds}


def from_worker(installation: Installation, model: str, waves: int) -> list[TrajectoryGroup]:
    """The groups of the first tasks: 32 to warm up, `waves` · 32, and 32 more. A group can finish
    before at most 32 earlier tasks, because 32 are in flight."""
    positions = list(range(PROMPTS * (waves + 2)))
    with (
        failures(),
        installation.running("demo_grpo", "generation", generation_config(model)) as run,
    ):
        return [decode(blob) for blob in asyncio.run(_arrived(installation, run, positions))]


async def _arrived(installation: Installation, run: str, positions: list[int]) -> list[bytes]:
    """Wait until the tasks at `positions` are complete. Return their groups."""
    store = Store.from_url(installation.stack.redis_url)
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while True:
            # Ask for the last one first: all together are megabytes.
            if None not in await store.trajectories.payloads(run, positions[-1:]):
                payloads = await store.trajectories.payloads(run, positions)
                there = [payload for payload in payloads if payload is not None]
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
    """The process of `bench.offline`. Call `close` at the end."""

    def __init__(self, weights: Path, log: Path) -> None:
        """Start the process and wait until it has loaded `weights`. Raise BenchFailed."""
        self._log = log
        inherited = {**_cores(), **os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        kv_cache = RolloutSettings(_cli_parse_args=False).vllm_kv_cache_gib
        self._folder = make_server_folder()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.offline"],
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
        """Sample all `prompts` in one call. Raise BenchFailed if the process does not answer."""
        answer = self._ask({"prompts": prompts, "sampling": sampling()})
        return answer["tokens"], answer["seconds"]

    def close(self) -> None:
        """Kill the process and its children."""
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
    """The arguments of `LLM`, equal to those of the worker's server (`options.command_line`)."""
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
    """The cores of the installation's worker."""
    plan = place_here(1, 1)
    return bound_to(plan.rollouts[0]) if plan is not None else {}
