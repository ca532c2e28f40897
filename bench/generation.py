"""Part `generation`: the rollout worker against vLLM's offline `LLM.generate`, alternating.

Worker: the real one, in a run whose first batch never fills, so that the learner stays idle; what
counts is groups that arrived in Redis, generated, scored and complete. Offline: a warm process with
the same weights, options, cores, prompts and sampling. One of the two works at a time.
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.figures import Generated, departures, joined
from bench.installation import BenchFailed, Installation
from bench.workload import (
    CONTEXT,
    NEW_TOKENS,
    PROMPTS,
    SAMPLES,
    SEQUENCES,
    Scale,
    generation_config,
)
from rollout.samples import sampling_params
from rollout.settings import RolloutSettings
from rollout.vllm_options import environment
from services.contracts.config.rollout import Sampling
from services.contracts.trajectory import TrajectoryGroup, decode
from services.gpus import installed_device
from services.launch.cores import place_here
from services.process import die_with
from services.store import Store

LIMIT_SECONDS = 240.0
"""Longest wait for one answer of either side."""


def measure(
    installation: Installation, model: str, weights: Path, scale: Scale, say: Callable[[str], None]
) -> dict[str, Any]:
    """`scale.rounds` rounds of worker, then offline. Raises BenchFailed."""
    sides: dict[str, list[Generated]] = {"worker": [], "offline": []}
    offline: Offline | None = None
    try:
        for number in range(1, scale.rounds + 1):
            say(f"generation, round {number} of {scale.rounds}: worker")
            groups = from_worker(installation, model, scale.waves)
            finished = [(int(g.lengths.sum()), g.header.generated_at) for g in groups]
            sides["worker"].append(departures(finished, PROMPTS, PROMPTS * scale.waves))
            prompts = [g.prompt_tokens.tolist() for g in groups[: PROMPTS * scale.waves]]
            if offline is None:
                say("  starting LLM for the offline side")
                offline = Offline(weights, installation.data / "logs" / "offline.log")
            say(f"generation, round {number} of {scale.rounds}: offline")
            offline.generate(prompts[:PROMPTS])
            sides["offline"].append(offline.generate(prompts))
            say(
                "  tokens/s: "
                + ", ".join(f"{k} {v[-1].tokens_per_second:,.0f}" for k, v in sides.items())
            )
    finally:
        if offline is not None:
            offline.close()
    worker, reference = joined(sides["worker"]), joined(sides["offline"])
    return {
        "worker_tokens_per_second": worker.tokens_per_second,
        "offline_tokens_per_second": reference.tokens_per_second,
        "ratio": worker.tokens_per_second / reference.tokens_per_second,
        "groups_per_round": scale.waves * PROMPTS,
        "warmup_groups": PROMPTS,
        "rounds": {name: [asdict(one) for one in found] for name, found in sides.items()},
    }


def from_worker(installation: Installation, model: str, waves: int) -> list[TrajectoryGroup]:
    """The first draws' groups: 32 to warm up, `waves` · 32, and 32 more, since a group that
    overtakes others is at most as many draws ahead as there are in flight."""
    config = generation_config(model)
    wanted = list(range(PROMPTS * (waves + 2)))
    with installation.running("demo_grpo", "generation", config) as run:
        blobs = asyncio.run(_arrived(installation, run, wanted))
    return [decode(blob) for blob in blobs]


async def _arrived(installation: Installation, run: str, positions: list[int]) -> list[bytes]:
    """The groups of these draws, once all are there."""
    store = Store.from_url(installation.stack.redis_url)
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while True:
            try:
                # The last first: asking for all would fetch megabytes in vain.
                await store.trajectories.payloads(run, positions[-1:])
                return await store.trajectories.payloads(run, positions)
            except KeyError:
                installation.stack.check()
                if time.monotonic() > deadline:
                    raise BenchFailed(
                        f"the worker did not complete draws {positions[0]} to {positions[-1]} "
                        f"within {LIMIT_SECONDS:.0f} s; logs: {installation.data / 'logs'}"
                    ) from None
                await asyncio.sleep(0.5)
    finally:
        await store.close()


class Offline:
    """The process of `bench.offline`. Use `close`."""

    def __init__(self, weights: Path, log: Path) -> None:
        """Start it and wait until it has loaded `weights`. Raises BenchFailed."""
        self._log = log
        root = str(Path(__file__).resolve().parent.parent)
        inherited = {**os.environ, **_cores(), "PYTHONPATH": root}
        kv_cache = RolloutSettings(_cli_parse_args=False).vllm_kv_cache_gib
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.offline"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment(inherited, installed_device(), kv_cache),
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        try:
            self._ask(engine_options(weights))
        except BaseException:
            self.close()
            raise

    def generate(self, prompts: list[list[int]]) -> Generated:
        """All samples of `prompts`, handed over at once. Raises BenchFailed."""
        answer = self._ask({"prompts": prompts, "sampling": sampling()})
        return Generated(answer["tokens"], answer["seconds"])

    def close(self) -> None:
        """End the process and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = b""
        try:
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
            if select.select([stdout], [], [], LIMIT_SECONDS)[0]:
                line = stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
            raise BenchFailed(f"LLM.generate gave no answer. The end of {self._log}:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def engine_options(weights: Path) -> dict[str, Any]:
    """`LLM`'s arguments: those of the worker's server (`rollout.vllm_options.command_line`)."""
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
    section = Sampling(max_tokens=NEW_TOKENS, ignore_eos=True)
    params = sampling_params(section, [], CONTEXT)
    return {**params, "n": SAMPLES, "logprobs": 0, "detokenize": False}


def _cores() -> dict[str, str]:
    """The core placement of the installation's worker, unless the user has set his own."""
    plan = place_here(1, 1)
    name = "VLLM_CPU_OMP_THREADS_BIND"
    placed = plan.rollout_environment(0) if plan is not None else {}
    return {} if name in os.environ else placed
