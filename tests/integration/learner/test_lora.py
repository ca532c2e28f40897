"""A real learner that trains adapters: killed, resumed, and started from."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from learner.checkpoints.checkpoint_reader import verify
from services.contracts.config import parse_config
from services.contracts.records import RunRecord, RunState
from services.store import Store
from services.volume import Volume
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import ended, rl, steps, submit, supervised
from tests.integration.learner.torch_worker import eventually, serving

LORA = {"rank": 4, "alpha": 8}
# 2 · 4 · (4 · (32 + 32) + 3 · (32 + 48)) numbers, as tests/unit/learner/test_lora.py has it.
ADAPTER_BYTES = 4 * 3968


def merged(data: Path, checkpoint: str) -> dict[str, torch.Tensor]:
    """Weights of the model that peft makes from a checkpoint and its base."""
    folder = data / checkpoint
    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    weights: dict[str, torch.Tensor] = model.merge_and_unload().state_dict()
    return weights


async def test_adapters_survive_kill_9_go_on_in_another_run_and_are_started_from(
    place: Place, store: Store
) -> None:
    volume = Volume(place.data)
    learner = await supervised(place, store)
    first = await ended(store, "first")
    training = rl()["training"] | {"max_steps": 12}
    algorithm = rl()["algorithm"] | {"kl": {"type": "k3", "beta": 0.01}}
    raw = rl(model={"path": "run:first", "lora": LORA}, training=training, algorithm=algorithm)
    await submit(store, "thin", raw)

    async def reached() -> bool:
        record: RunRecord | None = await store.runs.get("thin")
        return record is not None and record.step >= 7

    async with serving(store, volume, "thin", parse_config(raw)) as worker:
        await eventually(reached)
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        before = dict(worker.digests)
        # The run's original model is gone: it resumes from its own copy of the base.
        assert first.checkpoint is not None
        shutil.move(place.data / first.checkpoint, place.data / "away")
        learner = place.learner()
        thin = await ended(store, "thin")
        assert worker.live is not None
        size = worker.live.files[0].bytes

    assert (thin.state, thin.step, thin.reason) == (RunState.SUCCEEDED, 12, "")
    # Replay is exact: versions after the restored one have the same weights, bit for bit.
    assert thin.checkpoint is not None
    assert verify(place.data / thin.checkpoint).lineages[1][1] == 5
    again = {tag.partition(":")[2]: x for tag, x in worker.digests.items() if tag not in before}
    old = {tag.partition(":")[2]: x for tag, x in before.items()}
    assert again.keys() & old.keys()
    assert all(again[version] == old[version] for version in again.keys() & old.keys())
    assert len(set(worker.digests.values())) > 1
    # A version is the adapters, and the header that names them.
    assert ADAPTER_BYTES < size < ADAPTER_BYTES + 8192
    rows = steps(place, "thin")
    assert all(row.get("mismatch/logprob_max", 0) < 1e-3 for row in rows)
    # The reference is the start of the run, which needs no second model.
    assert rows[0]["train/kl"] == pytest.approx(0, abs=1e-9)
    assert rows[-1]["train/kl"] > 1e-6

    longer = raw | {"training": training | {"max_steps": thin.step + 2}}
    await submit(store, "longer", longer, resume_from="thin")
    async with serving(store, volume, "longer", parse_config(longer)):
        record = await ended(store, "longer")
    assert (record.state, record.step, record.reason) == (RunState.SUCCEEDED, 14, "")
    assert record.checkpoint is not None
    bases = [place.data / f"runs/{run}/model/model.safetensors" for run in ("thin", "longer")]
    assert bases[0].read_bytes() == bases[1].read_bytes()

    # Another run starts from it, and trains everything.
    whole = rl(model={"path": "run:longer"}, training=training | {"max_steps": 1})
    await submit(store, "whole", whole)
    weights = place.data / "runs/whole/weights"
    async with serving(store, volume, "whole", parse_config(whole)):
        assert (await ended(store, "whole")).state is RunState.SUCCEEDED
    (began,), (trained,) = weights.glob("v000000-*"), weights.glob("v000001-*")
    assert began.read_bytes() != trained.read_bytes()
    published, expected = load_file(began), merged(place.data, record.checkpoint)
    assert published.keys() == expected.keys()
    changed = load_file(bases[0])
    for name, tensor in published.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=1e-5)
        assert torch.equal(tensor, changed[name]) == ("_proj" not in name)

    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0
