"""`python -m bench.agents`: what agents' turns cost that go through gateway and worker.

Two parts: a vLLM that sleeps, which leaves the processors to what is measured, and a real one. In
each, a run's sessions, a direct client of its vLLM, and a run's groups take turns on one
installation.
docs/benchmarks.md says what the figures mean.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from bench.agents.players import AT_ONCE, GROUP, MEDIAN, Agents, Direct, Played, play
from bench.installation import (
    LOGS,
    POLL_SECONDS,
    STANDSTILL_SECONDS,
    BenchFailed,
    Installation,
    exit_code,
)
from bench.results import begun, keep, table
from rollout.vllm.model_files import eos_token_ids, load_tokenizer
from rollout.vllm.server import FOLDER_PREFIX
from rollout.vllm_plugin.wire import UNFINISHED
from services.runtime.host_load import tree

ROOT = Path(__file__).parents[2]
CONTEXT, CONVERSATION = 2048, 1536
"""Tokens of a prompt and its answer; of a conversation after its first prompt, at most."""
STAGGER, WARMUP, SECONDS = 5.0, 10.0, 40.0
"""Over so many seconds the first conversations begin; turns count that end after the warm-up."""
QUICK = 0.4
"""Of these times, with `--quick`."""
TOKEN_SECONDS = 0.1
"""Of the vLLM that sleeps: each token stands for three, at 30 tokens/s."""
ENDLESS = 100_000
FILLING = 40
"""Sums in a prompt without a session."""
TICKS = os.sysconf("SC_CLK_TCK")
WORKER, VLLM, CLIENT = "rollout-0", "vLLM", "client"
"""Processes by name: the worker, all below it, and this one."""
BUSY = 0.3
"""Share of a core. In a client that takes more, answers wait for each other noticeably."""
WARNING = (
    f"The client took more than {BUSY} of a core on a side: what is added to a turn may be its own."
)
PARTS = {
    "simulated": {
        "HEADRACE_VLLM_COMMAND": f"{sys.executable} -m bench.simulated.vllm "
        f"--token-seconds {TOKEN_SECONDS}",
        "PYTHONPATH": str(ROOT),
    },
    "real": {},
}
MODEL: dict[str, Any] = {
    "model": {"max_length": CONTEXT, "tokenizer": {"type": "bpe", "vocabulary": 512}},
    "training": {"max_steps": 2, "rows_per_step": 32},
}


@dataclass(frozen=True)
class Load:
    """How much is played."""

    at_once: int = AT_ONCE
    part: float = 1.0
    """Of all times."""


def run_config(model: str, sessions: bool) -> dict[str, Any]:
    """Over the recipe demo_grpo: a first batch that never fills, so that the learner stays idle.
    Groups without sessions have prompts and answers as long as those of a session's third turn."""
    filling = " ".join(f"{n}+{n + 1}={2 * n + 1}" for n in range(FILLING))
    return {
        "model": {"path": model},
        "data": {
            "dataset": "demo-train",
            "template": "{prompt}=" if sessions else f"{filling} {{prompt}}=",
            "chat_template": "auto",
        },
        "rewards": [{"verifier": "exact"}],
        "sampling": {"max_tokens": CONVERSATION if sessions else round(MEDIAN)},
        "rollout": {
            "vllm": {"max_model_len": CONTEXT, "max_num_seqs": AT_ONCE, "dtype": "float32"},
            **({"episode": {"type": "sessions", "idle_seconds": 300}} if sessions else {}),
        },
        "algorithm": {"prompts_per_step": ENDLESS, "samples_per_prompt": GROUP},
        "training": {"max_steps": 1},
        "evaluation": None,
    }


@dataclass(frozen=True)
class Counted:
    """What the processes and vLLM have counted so far."""

    at: float
    cpu: dict[str, float]
    """Seconds of each process, by name; of vLLM's together."""
    queried: float
    """Tokens of prompts that vLLM looked for in its prefix cache, and of these found."""
    hit: float
    sampled: float
    """Tokens."""


async def measure_sides(
    installation: Installation, folder: Path, run: str, weights: Path, load: Load
) -> dict[str, Any]:
    """Sessions of `run`, and then the direct client. `folder`: that of temporary files; `weights`:
    with the model's tokenizer."""
    key, url = installation.stack.api_key, installation.stack.gateway_url
    played, direct = Played(), Played()
    async with aclosing(Agents(url, key, run, played)) as agents:
        await agents.ready()
        (socket,) = folder.glob(f"{FOLDER_PREFIX}*/socket")
        side = partial(_side, installation, socket, load)
        found = {"sessions": await side(agents.conversation, played)}
    await _drained(socket)
    tokenizer = load_tokenizer(weights)
    ends = eos_token_ids(weights, tokenizer)
    async with aclosing(Direct(socket, tokenizer, ends, direct)) as player:
        found["direct"] = await side(player.conversation, direct)
    return found


async def _side(
    installation: Installation,
    socket: Path,
    load: Load,
    conversation: Callable[[int, int], Awaitable[None]],
    played: Played,
) -> dict[str, Any]:
    """The figures of one side, of the turns that end between warm-up and end."""
    playing = asyncio.create_task(play(conversation, load.at_once, STAGGER * load.part))
    try:
        counting = asyncio.create_task(_counts(installation, socket, load))
        await asyncio.wait({playing, counting}, return_when=asyncio.FIRST_COMPLETED)
        if playing.done():
            playing.result()
        first, last = await counting
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    return figures(played, first, last)


async def _counts(installation: Installation, socket: Path, load: Load) -> tuple[Counted, Counted]:
    """What is counted after the warm-up, and at the end."""
    await asyncio.sleep(WARMUP * load.part)
    first = await _counted(installation, socket)
    await asyncio.sleep((SECONDS - WARMUP) * load.part)
    return first, await _counted(installation, socket)


def figures(played: Played, first: Counted, last: Counted) -> dict[str, Any]:
    """Of the turns that ended between two counts. Raises BenchFailed if these are too few."""
    turns = [turn for turn in played.turns if first.at < turn.ended <= last.at]
    if len(turns) < 20:
        raise BenchFailed(f"{len(turns)} turns were answered between the warm-up and the end")
    beyond = quantiles([turn.seconds - turn.tokens * TOKEN_SECONDS for turn in turns], n=100)
    seconds, queried = last.at - first.at, last.queried - first.queried
    return sampling(first, last) | {
        "turns": len(turns),
        "turns_per_second": len(turns) / seconds,
        "beyond_sampling": {f"p{at}": beyond[at - 1] for at in (50, 90, 99)},
        "hit_rate": (last.hit - first.hit) / queried if queried else 0.0,
        "client_share": (last.cpu[CLIENT] - first.cpu[CLIENT]) / seconds,
        "cpu_per_turn": {
            name: (spent - first.cpu[name]) / len(turns)
            for name, spent in last.cpu.items()
            if name in first.cpu
        },
    }


def sampling(first: Counted, last: Counted) -> dict[str, float]:
    """What vLLM sampled between two counts, and the CPU seconds that a token took it."""
    tokens = last.sampled - first.sampled
    spent = last.cpu[VLLM] - first.cpu[VLLM]
    return {
        "tokens_per_second": tokens / (last.at - first.at),
        "cpu_per_token": spent / tokens if tokens else 0.0,
    }


async def _drained(socket: Path) -> None:
    """Return once vLLM has finished the turns of players that have left. Raises BenchFailed."""
    deadline = time.monotonic() + STANDSTILL_SECONDS
    while int(await _asked(socket, UNFINISHED)):
        if time.monotonic() > deadline:
            raise BenchFailed("vLLM still samples turns of the sessions that nobody plays any more")
        await asyncio.sleep(POLL_SECONDS)


async def _asked(socket: Path, path: str) -> str:
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://vllm", timeout=60
    ) as http:
        return (await http.get(path)).raise_for_status().text


async def _counted(installation: Installation, socket: Path) -> Counted:
    text = await _asked(socket, "/metrics")
    pids = {**installation.stack.processes, CLIENT: os.getpid()}
    cpu = {name: _cpu_seconds(pid) for name, pid in pids.items()}
    cpu[VLLM] = sum(map(_cpu_seconds, tree(pids[WORKER]))) - cpu[WORKER]
    return Counted(
        time.monotonic(),
        cpu,
        _counter(text, "vllm:prefix_cache_queries_total"),
        _counter(text, "vllm:prefix_cache_hits_total"),
        _counter(text, "vllm:generation_tokens_total"),
    )


def _counter(text: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def _cpu_seconds(pid: int) -> float:
    """Of one process without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(name: str, load: Load, say: Callable[[str], None]) -> dict[str, Any]:
    """One part, on an installation of its own. Raises BenchFailed, LaunchError."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        environment = LOGS | PARTS[name] | {"TMPDIR": folder}
        with Installation(Path(folder) / "data", environment=environment) as installation:
            say(f"{name} vLLM: making the model")
            made = installation.finish(installation.submit("demo_sft", "model", MODEL))
            model, weights = f"run:{made['id']}", installation.data / made["checkpoint"]
            say(f"{name} vLLM: sessions and the direct client")
            with installation.running("demo_grpo", "agents", run_config(model, True)) as run:
                found = asyncio.run(measure_sides(installation, Path(folder), run, weights, load))
            say(f"{name} vLLM: groups without sessions")
            with installation.running("demo_grpo", "plain", run_config(model, False)):
                plain = _plain(installation, Path(folder), load)
    return compared(found, plain)


def _plain(installation: Installation, folder: Path, load: Load) -> dict[str, float]:
    """`sampling` of the run that goes on. Raises BenchFailed."""
    deadline = time.monotonic() + STANDSTILL_SECONDS
    while not any(
        one["groups_in_flight"] for one in installation.api.get("/v1/workers")["workers"]
    ):
        installation.check()
        if time.monotonic() > deadline:
            raise BenchFailed(f"no group is sampled; logs: {installation.data / 'logs'}")
        time.sleep(POLL_SECONDS)
    (socket,) = folder.glob(f"{FOLDER_PREFIX}*/socket")
    return sampling(*asyncio.run(_counts(installation, socket, load)))


def compared(sides: dict[str, Any], plain: dict[str, float]) -> dict[str, Any]:
    """What is asked of the figures."""
    sessions, direct = sides["sessions"], sides["direct"]
    hits = direct["hit_rate"]
    return {
        **sides,
        "plain": plain,
        "added": {
            at: seconds - direct["beyond_sampling"][at]
            for at, seconds in sessions["beyond_sampling"].items()
        },
        "hit_rate": sessions["hit_rate"] / hits if hits else 0.0,
        "of_direct": sessions["tokens_per_second"] / direct["tokens_per_second"],
        "of_plain": sessions["tokens_per_second"] / plain["tokens_per_second"],
    }


def text(results: Mapping[str, Any]) -> str:
    """The figures as a table."""
    parts = list(results["parts"].values())

    def times(part: str, seconds: Mapping[str, float]) -> str:
        # Of a real vLLM nobody knows how long it samples.
        known = part == "simulated"
        return " / ".join(f"{1000 * at:.1f}" for at in seconds.values()) if known else "-"

    shown = [
        {
            **one,
            "added": times(name, one["added"]),
            "beyond": {
                side: times(name, one[side]["beyond_sampling"]) for side in ("sessions", "direct")
            },
        }
        for name, one in results["parts"].items()
    ]
    rows = [["", *(f"{name} vLLM" for name in results["parts"])]]
    for label, form in (
        ("turns a second", "{sessions[turns_per_second]:.1f}"),
        ("added to a turn, ms, p50 / p90 / p99", "{added}"),
        ("  beyond sampling, ms: sessions", "{beyond[sessions]}"),
        ("  direct client", "{beyond[direct]}"),
        ("prefix cache, hit rate: sessions", "{sessions[hit_rate]:.3f}"),
        ("  direct client", "{direct[hit_rate]:.3f}"),
        ("  sessions over direct client", "{hit_rate:.2f}"),
        ("client's share of a core: sessions", "{sessions[client_share]:.2f}"),
        ("  direct client", "{direct[client_share]:.2f}"),
        ("tokens/s: sessions", "{sessions[tokens_per_second]:,.0f}"),
        ("  direct client", "{direct[tokens_per_second]:,.0f}"),
        ("  groups without sessions", "{plain[tokens_per_second]:,.0f}"),
        ("  sessions over direct client", "{of_direct:.2f}"),
        ("  sessions over groups", "{of_plain:.2f}"),
    ):
        rows.append([label, *(form.format_map(one) for one in shown)])
    for side in ("sessions", "direct", "plain"):
        spent = [f"{1000 * one[side]['cpu_per_token']:.2f}" for one in parts]
        rows.append([f"CPU of vLLM, ms a token: {side}", *spent])
    for name in parts[0]["sessions"]["cpu_per_turn"] if parts else ():
        each = [one["sessions"]["cpu_per_turn"].get(name, 0.0) for one in parts]
        rows.append([f"CPU, ms a turn: {name}", *(f"{1000 * one:.1f}" for one in each)])
    busy = any(one[side]["client_share"] > BUSY for one in parts for side in ("sessions", "direct"))
    return table(rows) + (f"\n{WARNING}" if busy else "")


def main() -> int:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(prog="python -m bench.agents", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two fifths of the time")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable")
    given = parser.parse_args()
    load = Load(part=QUICK if given.quick else 1.0)

    def measured() -> None:
        results = begun("agents") | {"parts": {}}
        for name in given.only or PARTS:
            results["parts"][name] = measure(name, load, lambda line: print(line, flush=True))
        print(f"{text(results)}\nall figures: {keep(results)}")

    return exit_code(measured)
