"""A rollout worker in a few lines: the real leases and groups, sampled with torch instead of vLLM,
so that tests of the learner alone need no server that takes a minute to start. It loads the newest
weights between groups; real workers load them during a group."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from peft import PeftModel, set_peft_model_state_dict
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from learner.model.moe.routing import Routing
from rollout.vllm.client.expert_routing import gathered
from services.contracts.config import RLConfig
from services.contracts.groups.trajectory import GroupHeader, TrajectoryGroup, encode
from services.contracts.rows.dataset import Row
from services.contracts.weights import ADAPTER, WeightManifest
from services.datasets import DatasetReader
from services.runtime.tasks import end
from services.store import Store
from services.volume import Volume
from services.weights import UnusableDelta
from tests.unit.weights.files import read_version


async def eventually(condition: Callable[[], Awaitable[Any]], within: float = 100.0) -> Any:
    """Return the first true result of `condition`. Raises AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    while not (result := await condition()):
        assert time.monotonic() < deadline, f"not within {within} s: {condition}"
        await asyncio.sleep(0.05)
    return result


@asynccontextmanager
async def serving(
    store: Store, volume: Volume, run: str, config: Any
) -> "AsyncIterator[TorchWorker]":
    """Run a worker that samples for `run` within the block."""
    worker = TorchWorker(store, volume, run, config)
    task = asyncio.create_task(worker.work())
    try:
        yield worker
    finally:
        await end([task])


class TorchWorker:
    """Samples the groups of one run until it is cancelled."""

    def __init__(self, store: Store, volume: Volume, run: str, config: RLConfig) -> None:
        self.store, self.volume, self.run, self.config = store, volume, run, config
        self.live: WeightManifest | None = None
        self.model: Any = None
        self.digests: dict[str, str] = {}
        """Checksum of the weights of each version that was live here, by tag."""
        self.kinds: set[str] = set()
        """Kinds of those versions."""
        self.straggler: asyncio.Event | None = None
        """If set, the first group completes only after this event."""
        self.late: asyncio.Task[None] | None = None
        self.lease_seconds = 60.0
        self.refused = ""
        """Reason of the last refused lease."""

    async def work(self) -> None:
        record = await self.store.datasets.find(self.config.data.dataset)
        assert record is not None
        reader = DatasetReader(self.volume, record)
        while True:
            manifest = await self.store.weights.newest(self.run)
            if manifest is None or not self.follow(manifest):
                await asyncio.sleep(0.05)
                continue
            granted = await self.store.tasks.lease(
                self.run,
                worker="torch",
                lineage=manifest.lineage,
                version=manifest.version,
                count=2,
                ttl=self.lease_seconds,
                reserve_bytes=4096,
            )
            self.refused = granted.refusal
            for lease in granted.leases:
                row = reader.row(lease.position.row(self.config.order_seed))
                group = self.group(row, lease.task, lease.attempt)
                hand_in = partial(self.hand_in, lease.attempt, manifest, group)
                if self.straggler is not None and self.late is None:
                    self.late = asyncio.create_task(self.when_released(hand_in))
                else:
                    await hand_in()
            await asyncio.sleep(0 if granted.leases else 0.02)

    async def hand_in(self, attempt: str, manifest: WeightManifest, group: TrajectoryGroup) -> None:
        await self.store.tasks.complete(
            self.run,
            attempt,
            min_version=manifest.version,
            lineage=manifest.lineage,
            blob=bytes(encode(group)),
            lengths=group.trained_lengths(self.config.algorithm.shaping.mask_truncated),
        )

    async def when_released(self, hand_in: Callable[[], Awaitable[None]]) -> None:
        assert self.straggler is not None
        await self.straggler.wait()
        await hand_in()

    def follow(self, manifest: WeightManifest) -> bool:
        """Load `manifest` unless it is live. Return False if its file is already gone."""
        if self.live is not None and manifest.tag == self.live.tag:
            return True
        folder, adapter = self.volume.path(manifest.model), manifest.kind == "adapter"
        if self.model is None:
            if adapter:
                base = AutoModelForCausalLM.from_pretrained(folder)
                self.model = PeftModel.from_pretrained(base, folder / ADAPTER)
            else:
                self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
        try:
            weights = read_version(self.volume.root, manifest)
        except (FileNotFoundError, UnusableDelta):
            return False
        if adapter:
            set_peft_model_state_dict(self.model, weights)
        else:
            self.model = type(self.model).from_pretrained(
                None, config=self.model.config, state_dict=weights, dtype=torch.float32
            )
        if self.config.algorithm.router.replay:
            self.routing = Routing(self.model)
        self.digests[manifest.tag] = digest(weights)
        self.kinds.add(manifest.kind)
        self.live = manifest
        return True

    @torch.no_grad()
    def group(self, row: Row, task: int, attempt: str) -> TrajectoryGroup:
        assert self.live is not None
        n, end = self.config.algorithm.samples_per_prompt, self.tokenizer.eos_token_id
        asked = self.config.data.template.replace("{prompt}", str(row.prompt))
        prompt = self.tokenizer(asked).input_ids
        rows = torch.tensor([prompt] * n)
        columns = []
        for _ in range(self.config.sampling.max_tokens):
            logprobs = self.model(rows, use_cache=False).logits[:, -1].log_softmax(-1)
            token = torch.distributions.Categorical(logits=logprobs).sample()
            columns.append(logprobs.gather(1, token[:, None]))
            rows = torch.cat([rows, token[:, None]], 1)
        answers = [sample.tolist() for sample in rows[:, len(prompt) :]]
        answers = [a[: a.index(end) + 1] if end in a else a for a in answers]
        lengths = np.array([len(answer) for answer in answers])
        sampled = torch.cat(columns, 1).numpy()
        texts = [self.tokenizer.decode(a, skip_special_tokens=True) for a in answers]
        experts = routed = None
        if self.config.algorithm.router.replay:
            ways = zip(self.ways(rows), lengths, strict=True)
            said = [each[: len(prompt) + k - 1] for each, k in ways]
            experts, routed = gathered(len(prompt), lengths.tolist(), said)
        return TrajectoryGroup(
            GroupHeader(
                run=self.run,
                task=task,
                attempt=attempt,
                worker="torch",
                row=0,
                lineage=self.live.lineage,
                tags=[self.live.tag],
                finish_reasons=["stop" if a[-1] == end else "length" for a in answers],
                statuses=["correct" if text == row.answer else "wrong" for text in texts],
                # Partly for length, so that groups differ even if no answer is right.
                rewards=[float(text == row.answer) + 0.1 * len(text) for text in texts],
            ),
            np.array(prompt),
            lengths,
            np.concatenate([np.array(a) for a in answers]),
            np.ones(lengths.sum(), np.bool_),
            np.concatenate([sampled[i, :k] for i, k in enumerate(lengths)]),
            np.array([[i, 0, k, 0] for i, k in enumerate(lengths)]),
            experts=experts,
            routed=routed,
        )

    def ways(self, rows: torch.Tensor) -> list[Any]:
        """The experts [t, layers, experts per token] that each of `rows` [n, t] goes to."""
        self.routing.begin(None, torch.arange(rows.numel()))
        self.model(rows, use_cache=False)
        self.routing.end()
        assert self.routing.routed is not None
        taken = self.routing.routed.taken.transpose(0, 1)
        # The next pass over the model has fewer tokens.
        self.routing.begin(None, torch.zeros(0, dtype=torch.int64))
        return list(taken.unflatten(0, rows.shape).numpy())


def digest(weights: dict[str, torch.Tensor]) -> str:
    """Return a checksum of `weights` by their names, independent of the order of a file's
    metadata."""
    found = xxhash.xxh3_64()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
