"""A real vLLM server with a LoRA adapter: it samples what the learner computes, and an update
replaces the adapter alone, under requests that are in flight."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from learner.model.canary import CanaryPass
from learner.model.loading.lora import add_adapters
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.scratch import make_model
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from learner.publishing.model_folder import export_description
from learner.publishing.versions import host_weights
from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.client.response import Sample, sampling_params
from rollout.vllm.client.weight_loader import LoadRefused, WeightUpdate
from rollout.vllm.process.options import ServerConfig
from rollout.vllm.process.server import VLLMServer
from rollout.vllm.weights.canary_check import CanaryCheck
from services.contracts.config.lora import LoRA
from services.contracts.config.model import ScratchModel
from services.contracts.config.rollout import Sampling
from services.contracts.config.vllm import VLLM
from services.contracts.weights import WeightManifest
from services.runtime.gpus import installed_device
from tests.served import is_paused, live_version

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

CONTEXT = 512
PROMPT = [1, 4, 13, 5, 17]
SAMPLING = Sampling(temperature=0.8, max_tokens=48)
LONG = Sampling(max_tokens=450, ignore_eos=True)


@dataclass(frozen=True)
class Served:
    """A server, the learner's model, and the published adapters of two versions."""

    policy: PolicyClient
    loaded: LoadedModel
    versions: dict[str, Path]

    async def load(self, version: str) -> None:
        path = self.versions[version]
        await self.policy.weights.load(
            WeightUpdate(str(path), f"a:{version}", len(load_file(path)), "adapter")
        )

    def take(self, version: str) -> None:
        """Give the learner that version's adapters."""
        for name, tensor in load_file(self.versions[version]).items():
            own = name.removeprefix("base_model.model.").replace(".weight", ".default.weight")
            self.loaded.model.get_parameter(own).data.copy_(tensor)

    def published(self, version: str) -> WeightManifest:
        """Return the learner's manifest of that version."""
        self.take(version)
        canary = CanaryPass(self.loaded, TokenLogprobs(self.loaded.model), CONTEXT)()
        return WeightManifest("r", int(version), "a", "adapter", [], 0, "m", canary=canary)

    def logprobs(self, version: str, sample: Sample, temperature: float) -> torch.Tensor:
        """Return the learner's log-probabilities of the sample with that version's adapters."""
        self.take(version)
        tokens = torch.tensor(PROMPT + sample.token_ids.tolist())
        row = packed_row([tokens], [torch.arange(len(tokens)) >= len(PROMPT)])
        with torch.no_grad():
            found: torch.Tensor = TokenLogprobs(self.loaded.model)(row, temperature)[0]
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    root = tmp_path_factory.mktemp("lora")
    loaded = make_model(ScratchModel(source="scratch", max_length=CONTEXT), 1)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            # Larger than initialised: whether an adapter is there must show in every token.
            parameter.mul_(3 if parameter.ndim == 2 else 1)
    add_adapters(loaded, LoRA(rank=4, alpha=8), 0)
    export_description(loaded, root / "model")
    versions = {}
    for version in ("1", "2"):
        torch.manual_seed(int(version))
        tensors = host_weights(loaded, int(version), 0.0).tensors
        versions[version] = root / f"v{version}.safetensors"
        save_file({n: 0.3 * torch.randn_like(t) for n, t in tensors.items()}, versions[version])
    server = VLLMServer(
        ServerConfig(
            root / "model",
            VLLM(max_model_len=CONTEXT, max_num_seqs=16, startup_seconds=300),
            "float32",
            installed_device(),
        ),
        root / "vllm.log",
    )
    policy = await server.start()
    yield Served(policy, loaded, versions)
    await policy.close()
    await server.stop()


async def sampled_by(served: Served, version: str) -> list[Sample]:
    samples = await served.policy.generate(PROMPT, 4, sampling_params(SAMPLING, [2], CONTEXT))
    for sample in samples:
        assert [span.version for span in sample.spans] == [f"a:{version}"]
        gap = served.logprobs(version, sample, 0.8) - torch.from_numpy(sample.logprobs)
        assert float(gap.abs().max()) <= 1e-3
    return samples


async def in_flight(served: Served) -> asyncio.Task[list[Sample]]:
    """A request for long samples that has sampled some of its tokens."""
    before = (await served.policy.counters()).tokens
    params = sampling_params(LONG, [2], CONTEXT)
    request = asyncio.create_task(served.policy.generate(PROMPT, 4, params))
    while (await served.policy.counters()).tokens < before + 40:
        assert not request.done()
    return request


async def test_vllm_samples_with_the_adapter_what_the_learner_computes(served: Served) -> None:
    await served.load("1")
    samples = await sampled_by(served, "1")
    # The other version is another policy: a server that ignored adapters would not pass.
    gap = served.logprobs("2", samples[0], 0.8) - torch.from_numpy(samples[0].logprobs)
    assert float(gap.abs().max()) > 0.5


async def test_an_update_replaces_the_adapter_under_requests_in_flight(served: Served) -> None:
    await served.load("1")
    request = await in_flight(served)

    await served.load("2")

    for sample in await request:
        assert [span.version for span in sample.spans] == ["a:1", "a:2"]
        assert (len(sample.token_ids), sample.finish_reason) == (450, "length")
        fork = sample.spans[0].end
        ours = served.logprobs("1", sample, 1.0)[:fork] - torch.from_numpy(sample.logprobs)[:fork]
        assert float(ours.abs().max()) <= 1e-3
    # With the prefix of the old version in its cache before.
    await sampled_by(served, "2")
    await served.load("1")
    await sampled_by(served, "1")


async def test_a_broken_adapter_leaves_the_old_adapter_serving(
    served: Served, tmp_path: Path
) -> None:
    await served.load("1")
    good = load_file(served.versions["2"])
    first = next(iter(good))
    broken = {
        "cut": served.versions["2"].read_bytes()[:-8],
        "shape": {**good, first: good[first][:2].contiguous()},
        "missing": {name: tensor for name, tensor in good.items() if name != first},
    }
    for name, what in broken.items():
        path = tmp_path / name
        if isinstance(what, bytes):
            path.write_bytes(what)
        else:
            save_file(what, path)
        with pytest.raises(LoadRefused, match="weights kept"):
            await served.policy.weights.load(WeightUpdate(str(path), "a:9", len(good), "adapter"))
    with pytest.raises(LoadRefused, match="kind 'full'"):
        await served.policy.weights.load(WeightUpdate(str(served.versions["2"]), "a:9", len(good)))

    assert await live_version(served.policy.socket) == "a:1"
    assert not await is_paused(served.policy.socket)
    await sampled_by(served, "1")


async def test_an_adapter_of_zeros_or_of_another_version_is_found(
    served: Served, tmp_path: Path
) -> None:
    check = CanaryCheck(served.policy, "auto", masks=False)
    for version in ("1", "2"):
        await served.load(version)
        assert await check.problem(served.published(version)) == ""
        assert check.gap is not None
        assert check.gap < 1e-4

    adapter = load_file(served.versions["2"])
    zeros, path = {name: torch.zeros_like(t) for name, t in adapter.items()}, tmp_path / "zeros"
    save_file(zeros, path)
    await served.policy.weights.load(WeightUpdate(str(path), "a:2", len(zeros), "adapter"))
    problem = await check.problem(served.published("2"))
    assert problem.endswith("they are those of the model without its adapter")

    await served.load("1")
    problem = await check.problem(served.published("2"))
    assert problem.endswith("they are those of version a:1")
