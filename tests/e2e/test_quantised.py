"""A real vLLM server with quantised weights: each version is quantised anew from the learner's."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.client.weight_loader import WeightsUnclear, WeightUpdate
from rollout.vllm.process.options import ServerConfig
from rollout.vllm.process.server import VLLMServer
from rollout.vllm.weights.canary_check import CanaryCheck
from rollout.vllm.weights.staging import Staging
from services.contracts.config.vllm import VLLM
from services.runtime.gpus import installed_device
from services.weights import DeltaWriter, changes, tensor_checksum
from tests.e2e.conftest import CONTEXT, TinyModel
from tests.e2e.test_vllm import published
from tests.served import is_paused
from tests.unit.weights.files import Weights, save_delta, save_full

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(800)]

PROMPT = [0, 4, 13, 5, 17, 8, 21, 6, 6, 30, 12, 9]
OPTIONS = VLLM(
    max_model_len=CONTEXT, max_num_seqs=8, startup_seconds=500, quantization="fp8_per_channel"
)


@dataclass(frozen=True)
class Versions:
    """Three versions of a run, in bfloat16: the second changes some values of the first, the third
    all."""

    folder: Path
    tensors: int
    first: Weights
    second: Weights

    def full(self, number: int) -> WeightUpdate:
        return WeightUpdate(str(self.folder / f"v{number}"), f"aaaaaa:{number}", self.tensors)

    def delta(self, name: str) -> WeightUpdate:
        """To version 2."""
        path = str(self.folder / "v1")
        deltas = (str(self.folder / name),)
        return WeightUpdate(path, "aaaaaa:2", self.tensors, "delta", deltas=deltas)


@pytest.fixture(scope="module")
def versions(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Versions:
    folder = tmp_path_factory.mktemp("versions")
    first, third = (as_bits(path) for path in (tiny_model.full_a, tiny_model.full_b))
    second, random = {}, np.random.default_rng(0)
    for name, values in first.items():
        few = random.random(values.shape) < 0.02
        second[name] = np.where(few, third[name], values)
    for number, weights in enumerate((first, second, third), 1):
        save_full(folder / f"v{number}", weights)
    save_delta(folder / "delta", first, second, "aaaaaa:1", "aaaaaa:2")
    # The delta's values differ from its checksums, in one tensor of the last layer only.
    writer, last = DeltaWriter("aaaaaa:1", "aaaaaa:2"), "model.layers.3.mlp.up_proj.weight"
    for name, values in second.items():
        checksum = tensor_checksum(first[name] if name == last else values)
        found = changes(first[name], values)
        writer.add(name, values.shape, checksum, *found, values.reshape(-1))
    writer.write(folder / "wrong")
    return Versions(folder, tiny_model.tensors, first, second)


def as_bits(path: Path) -> Weights:
    return {
        name: tensor.bfloat16().view(torch.uint16).numpy()
        for name, tensor in load_file(path).items()
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policy(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PolicyClient]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    # The learner's weights are of float32 here; vLLM takes bfloat16 for what it quantises.
    server = VLLMServer(
        ServerConfig(tiny_model.folder, OPTIONS, "float32", installed_device()), log
    )
    client = await server.start()
    assert "fp8" in log.read_text().lower()
    yield client
    await client.close()
    await server.stop()


async def scores(policy: PolicyClient) -> np.ndarray:
    return await policy.score(PROMPT, False)


async def test_deltas_are_quantised_like_whole_files(
    policy: PolicyClient, versions: Versions, tmp_path: Path
) -> None:
    staging = Staging(tmp_path, whole=True)
    await policy.weights.load(versions.full(1))
    first = await scores(policy)
    await policy.weights.load(staging.stage(versions.delta("delta"), "aaaaaa:1"))
    by_delta = await scores(policy)
    await policy.weights.load(versions.full(3))
    third = await scores(policy)
    await policy.weights.load(versions.delta("delta"))
    by_deltas = await scores(policy)
    await policy.weights.load(versions.full(2))
    by_file = await scores(policy)
    await policy.weights.load(versions.full(1))

    assert np.array_equal(by_delta, by_file)
    assert np.array_equal(by_deltas, by_file)
    assert np.array_equal(await scores(policy), first)
    assert np.abs(first - by_file).mean() > 0.001
    assert np.abs(first - third).mean() > 0.1


async def test_a_load_that_breaks_half_way_pauses_vllm_until_a_whole_load(
    policy: PolicyClient, versions: Versions
) -> None:
    await policy.weights.load(versions.full(3))
    before = await scores(policy)

    with pytest.raises(WeightsUnclear, match="version aaaaaa:2 is wrong"):
        await policy.weights.load(versions.delta("wrong"))
    assert await is_paused(policy.socket)

    await policy.weights.load(versions.full(3))
    assert np.array_equal(await scores(policy), before)
    assert not await is_paused(policy.socket)


async def test_the_canary_takes_rounding_for_right_and_another_version_for_wrong(
    policy: PolicyClient, tiny_model: TinyModel, versions: Versions
) -> None:
    check = CanaryCheck(policy, OPTIONS.computes_in, masks=False)
    first = published(tiny_model, tiny_model.full_a, 1)
    third = published(tiny_model, tiny_model.full_b, 3)

    await policy.weights.load(versions.full(1))
    assert await check.problem(first) == ""
    assert check.gap is not None
    assert 0.005 < check.gap < 0.3

    # The load was skipped.
    await policy.weights.load(replace(versions.full(1), tag=third.tag))
    assert (await check.problem(third)).endswith("they are those of version aaaaaa:1")

    await policy.weights.load(versions.full(3))
    assert await check.problem(third) == ""
