"""Runs as users have them, written through the store and into the data folder as learners do."""

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recipes import find_recipe, merged
from services.contracts.config import parse_config
from services.contracts.groups.sampled_answer import SampledAnswer
from services.contracts.records import (
    RunRecord,
    RunState,
    WorkerRecord,
)
from services.rollouts.token_texts import NAME, write_token_texts
from services.store import Store
from tests.kept_rollouts import answer as kept
from tests.kept_rollouts import keep

NOW = time.time()
LONG = 20_000
"""Steps of the longest run."""


def config(recipe: str, model: str, **overrides: Any) -> dict[str, Any]:
    """A whole config of a recipe on the dataset `gsm8k`."""
    base = {"model": {"path": model}, "data": {"dataset": "gsm8k"}}
    whole = merged(merged(find_recipe(recipe).config, base), overrides)
    return parse_config(whole).model_dump(mode="json")


def run(id: str, name: str, age: float, recipe: str = "grpo", **fields: Any) -> RunRecord:
    """A queued run of `age` seconds. `overrides`: keys of its config."""
    overrides, model = fields.pop("overrides", {}), fields.pop("model", "/models/smollm2")
    given: dict[str, Any] = {
        "id": id,
        "name": name,
        "pool": "default",
        "kind": "sft" if recipe == "sft" else "rl",
        "state": RunState.QUEUED,
        "recipe": recipe,
        "config": config(recipe, model, **overrides),
        "dataset_names": {"data.dataset": "gsm8k"},
        "created": NOW - age,
        "max_steps": 200,
    }
    return RunRecord(**given | fields)


def step(number: int, rng: random.Random, of: int = 200) -> dict[str, Any]:
    """A learner's row of metrics, as in docs/metrics.md."""
    share = number / of
    rise = 0.15 + 0.7 * (1 - math.exp(-3 * share))
    noise = rng.gauss(0, 0.03)
    return {
        "step": number,
        "version": number,
        "time": NOW - 12 * (of - number),
        "workers": 2,
        "bottleneck": "rollout",
        "reward/mean": rise + noise,
        "reward/std": 0.4 - 0.2 * share + noise / 3,
        "reward/groups_without_variance": 0.1 + 0.3 * share,
        "reward/missing": 0.0,
        "response/tokens_mean": 180 + 90 * share + 100 * noise,
        "response/truncated": max(0.0, 0.08 - 0.06 * share + noise / 9),
        "prompt/tokens_mean": 92 + 20 * noise,
        "train/loss": -0.01 + noise / 9,
        "train/kl": 0.02 * share + abs(noise) / 90,
        "train/entropy": 0.9 * math.exp(-1.2 * share) + noise / 9,
        "train/ratio_mean": 1 + noise / 90,
        "train/clip_low": 0.01 + noise / 90,
        "train/clip_high": 0.014 + noise / 90,
        "train/ess": 0.97 + noise / 9,
        "train/grad_norm": 0.6 + abs(noise) * 3,
        "train/lr": 1e-6 * (1 - share / 2),
        "mismatch/sampler_kl": 0.001 + abs(noise) / 90,
        "mismatch/kl": 0.0004 + abs(noise) / 900,
        "staleness/mean": 1.1 + noise,
        "staleness/max": 2,
        "time/step": 12 + 9 * noise,
        "time/waiting_for_groups": 5 + 9 * noise,
        "time/training": 6.2 + noise,
        "time/publishing": 0.2 + abs(noise),
        "time/workers_waiting_for_admission": abs(noise),
        "throughput/samples_per_second": 21 + 30 * noise,
        "throughput/tokens_per_second": 4300 + 4000 * noise,
        "memory/peak_bytes": 9_300_000_000,
    }


def supervised_step(number: int, rng: random.Random) -> dict[str, Any]:
    """A row of a supervised run."""
    loss = 2.1 * math.exp(-number / 60) + 1.2 + rng.gauss(0, 0.03)
    return {
        "step": number,
        "time": NOW - 3 * (200 - number),
        "train/loss": loss,
        "train/loss_smoothed": loss,
        "train/lr": 2e-5,
        "train/grad_norm": 1.1,
        "time/step": 3.0,
        "throughput/tokens_per_second": 9000.0,
        "memory/peak_bytes": 9_300_000_000,
    }


def judged(text: str) -> SampledAnswer:
    """An answer that a verifier has judged, and that was not trained."""
    return SampledAnswer(
        step=0,
        task=8,
        row=41,
        prompt="A robe takes 2 bolts of blue fiber and half that much white. How many in total?",
        completion=text,
        reference="3",
        tokens=64,
        reward=0.0,
        status="wrong",
        components={"math": 0.0},
        reasons={"math": "no boxed answer"},
        advantage=None,
        finish_reason="stop",
        versions=[0],
    )


WORDS = [
    *("<bos>", "A robe takes 2 bolts of blue fiber and half that much white.", " How many in"),
    *(" total?", "Half", " of", " 2", " is", " 1", ",", " so", " the", " total", " is"),
    *(" \\boxed{3}", " \\boxed{4}", "<eos>", "\n", "Let", " me", " think", "."),
]
"""The tokens of the seeded answers."""


def group(step: int, number: int, rng: random.Random) -> list[dict[str, Any]]:
    """A trained group of four answers."""
    rewards = [float(rng.random() < step / 130) for _ in range(4)]
    mean = sum(rewards) / 4
    rows = []
    for sample, reward in enumerate(rewards):
        thought = [18, 19, 20, 21, 17] * rng.randrange(3)
        ids = [*thought, *range(4, 14), 14 if reward else 15, 16]
        sampler = [-abs(rng.gauss(0, 0.6)) for _ in ids]
        learner = [min(0.0, value + rng.gauss(0, 0.05)) for value in sampler]
        rows.append(
            kept(
                step,
                number,
                sample,
                row=41 + number,
                generated_at=NOW - 12 * (120 - step),
                prompt="".join(WORDS[:4]),
                prompt_token_ids=[0, 1, 2, 3],
                completion="".join(WORDS[id] for id in ids),
                reward=reward,
                advantage=reward - mean,
                status="correct" if reward else "wrong",
                components={"math": reward, "format": 1.0},
                reasons={"math": "'3' (boxed) against '3'" if reward else "'4' against '3'"},
                sampler_logprobs=sampler,
                learner_logprobs=learner,
                entropy=[abs(rng.gauss(0, 0.5)) for _ in ids],
                versions=[
                    {"start": 0, "end": 5, "version": step - 2},
                    {"start": 5, "end": len(ids), "version": step - 1},
                ],
            )
            | {"token_ids": ids, "length": len(ids)}
        )
    return rows


ROWS = "".join(
    json.dumps({"question": f"A robe takes {n} bolts and half as many?", "answer": f"{n}"}) + "\n"
    for n in range(2, 402)
)
"""The rows of the dataset `gsm8k`."""


def write(data: Path, run: str, rows: list[dict[str, Any]]) -> None:
    """Write a run's metrics."""
    folder = data / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def keep_words(data: Path, run: str, rows: list[dict[str, Any]]) -> None:
    """Keep trained answers whose tokens are WORDS."""
    folder = keep(data / "runs" / run, rows)
    write_token_texts(folder / NAME, [word.encode() for word in WORDS])


class Seeds:
    """Makes runs, as their learner."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.store: Store
        self.tokens: dict[str, int] = {}
        """The fencing token of each run."""
        self.random = random.Random(1)

    def act(self, url: str, action: Callable[["Seeds"], Awaitable[None]]) -> None:
        """Do something with the store at `url`, in a thread: Playwright's own loop runs in this
        one."""

        async def run() -> None:
            self.store = Store.from_url(url)
            try:
                await action(self)
            finally:
                await self.store.close()

        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, run()).result()

    async def begin(self, record: RunRecord) -> None:
        """Submit a run, which a learner takes."""
        await self.store.runs.submit(record)
        await self.store.runs.take(record.pool)
        self.tokens[record.id] = await self.store.runs.acquire(record.id, record.id)
        token = self.tokens[record.id]
        await self.store.runs.set_state(record.id, "running", "", fencing_token=token)

    async def train(self, run: str, rows: list[dict[str, Any]], events: int = 20) -> None:
        """Report steps, as a learner does: into the file, the record, and the events."""
        write(self.data, run, rows)
        newest = rows[-1]
        metrics = {k: v for k, v in newest.items() if isinstance(v, int | float)}
        field, name = ("loss", "train/loss")
        if "reward/mean" in newest:
            field, name = ("reward", "reward/mean")
        fields = {
            "step": newest["step"],
            "version": newest["step"],
            "metrics": metrics,
            field: newest[name],
            "step_seconds": newest["time/step"],
        }
        await self.store.runs.update(run, self.tokens[run], fields)
        for row in rows[-events:]:
            await self.store.events.add(run, "step", row)

    async def everything(self) -> None:
        """A live run, a live supervised run, a failed one, an ended one, a sweep, and a worker. The
        dataset `gsm8k` is there."""
        store = self.store
        model = self.data.parent / "smollm2-135m-instruct"
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "tokenizer_config.json").write_text("{}")
        for i, rate in enumerate(("1e-6", "3e-6", "1e-5")):
            name = f"gsm8k-smollm2-135m-grpo-baseline-sweep-lr-{rate}"
            record = run(
                f"5eed000{i}",
                name,
                90_000 - i,
                overrides={"optimizer": {"lr": float(rate)}},
                model=str(model),
            )
            await self.begin(record)
            await self.train(record.id, [step(n, self.random) for n in range(1, 201)])
            await store.runs.finish(record.id, "default", "succeeded", "")
        await self.begin(run("1a9a9a9a", "long-run", 400_000, max_steps=LONG))
        rows = [step(n, self.random, LONG) for n in range(1, LONG + 1)]
        await self.train("1a9a9a9a", rows)
        await store.runs.finish("1a9a9a9a", "default", "succeeded", "")

        warning = "algorithm.kl: is none: the policy may drift from its start"
        live = run("11ve11ve", "gsm8k-live", 3000, warnings=[warning])
        live.config["optimizer"]["lr"] = 3e-6
        await self.begin(live)
        await self.train(live.id, [step(n, self.random) for n in range(1, 121)])
        groups = [group(n, 2 * n + i, self.random) for n in range(100, 121) for i in range(2)]
        keep_words(self.data, live.id, [row for rows in groups for row in rows])
        await store.events.add(live.id, "checkpoint", {"step": 100, "directory": "runs/11ve11ve"})
        await store.events.add(live.id, "warning", {"message": "12 % of the answers are cut off"})
        place = {"tracker": "wandb", "place": "https://wandb.example/team/runs/1"}
        await store.events.add(live.id, "tracker", place)
        for at in (100, 120):
            checkpoint = self.data / f"runs/{live.id}/checkpoints/step-{at:06d}-a"
            checkpoint.mkdir(parents=True)
            (checkpoint / "weights").write_bytes(bytes(4096))

        sft = run("5f75f75f", "gsm8k-sft", 2000, recipe="sft", pool="sft")
        await self.begin(sft)
        await self.train(sft.id, [supervised_step(n, self.random) for n in range(1, 81)])

        await self.begin(run("fa11ed00", "gsm8k-no-reward", 7000, pool="other"))
        await store.judged.add("fa11ed00", [judged("I do not know")])
        reason = "all rewards were 0 for 3 batches: check the verifier"
        await store.runs.finish("fa11ed00", "other", "failed", reason)

        await store.runs.submit(run("9ueued00", "gsm8k-next", 60))
        worker = WorkerRecord(
            id="gpu-1", pool="default", host="gpu-1", pid=1, state="generating", run=live.id
        )
        rates = {"tokens_per_second": 4213.0, "groups_in_flight": 8, "version": 120}
        await store.workers.heartbeat(worker.model_copy(update=rates))
