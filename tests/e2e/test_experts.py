"""A real vLLM serves a published mixture of experts, before and after an update."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from learner.model.loading.saving import save_description
from learner.model.loading.scratch import make_model
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from learner.publishing.versions import host_weights
from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.client.response import sampling_params
from rollout.vllm.client.weight_loader import WeightUpdate
from rollout.vllm.process.options import ServerConfig
from rollout.vllm.process.server import VLLMServer
from services.contracts.config.model import ScratchModel
from services.contracts.config.rollout import Sampling
from services.contracts.config.vllm import VLLM
from services.runtime.gpus import installed_device

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

MODEL = ScratchModel(
    source="scratch",
    hidden_size=128,
    layers=2,
    heads=4,
    intermediate_size=64,
    max_length=128,
    experts=8,
    experts_per_token=2,
)
PROMPT = [1, 5, 6, 14, 7, 8, 18]


def largest_gap(model: PreTrainedModel, tokens: np.ndarray, logprobs: np.ndarray) -> float:
    """Between vLLM's log-probabilities and the learner's."""
    whole = torch.tensor(PROMPT + tokens.tolist())
    with torch.no_grad():
        own, _ = TokenLogprobs(model)(packed_row([whole], [torch.arange(len(whole)) >= 7]))
    return float(np.abs(own.numpy() - logprobs).max())


async def test_published_experts_are_those_that_vllm_serves(tmp_path: Path) -> None:
    versions = [make_model(MODEL, seed) for seed in (1, 2)]
    for loaded in versions:
        # Larger than initialised: routers have to be sure of what they choose.
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(6)
    save_description(versions[0], tmp_path / "model")
    server = VLLMServer(
        ServerConfig(
            tmp_path / "model",
            VLLM(max_model_len=128, max_num_seqs=16, startup_seconds=300),
            "float32",
            installed_device(),
        ),
        tmp_path / "vllm.log",
    )
    client: PolicyClient | None = None
    try:
        client = await server.start()
        gaps = []
        for number, loaded in enumerate(versions, 1):
            published = host_weights(loaded, number, 0.0)
            path = tmp_path / f"{number}.safetensors"
            save_file(published.tensors, path, metadata={"format": "pt"})
            async with asyncio.timeout(120):
                await client.weights.load(
                    WeightUpdate(str(path), f"aaaaaa:{number}", len(published.tensors))
                )
                params = sampling_params(Sampling(max_tokens=32, ignore_eos=True), [2], 100)
                samples = await client.generate(PROMPT, 4, params)
            gaps += [
                [largest_gap(v.model, s.token_ids, s.logprobs) for v in versions] for s in samples
            ]
    finally:
        if client is not None:
            await client.close()
        await server.stop()

    assert all(own < 1e-3 < other for own, other in gaps[:4])
    assert all(own < 1e-3 < other for other, own in gaps[4:])
