"""Versions reach vLLM's own modules alike, as a patch and as a whole file, as they do on a GPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from rollout.vllm.client.weight_loader import WeightUpdate
from rollout.vllm.weights.staging import Staging
from tests.unit.weights.files import Weights, save_delta, save_full

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    # vLLM pads the rows of an embedding to a multiple of 64.
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}
MODELS = {
    "norms of queries, tied head": ("qwen3", {"tie_word_embeddings": True}),
    "biases of queries, a head of its own": ("qwen2", {"tie_word_embeddings": False}),
    "a head of its own": ("llama", {"tie_word_embeddings": False}),
    "gemma's blocks": ("gemma3_text", {"tie_word_embeddings": True}),
}


@pytest.fixture(scope="module")
def modules() -> Iterator[Any]:
    """The module `real_modules`, in a process that vLLM takes for its only one, on a GPU."""
    from tests.e2e import real_modules

    with real_modules.alone():
        yield real_modules


def versions(config: PretrainedConfig, folder: Path) -> int:
    """Write version 1 as a file, and deltas to version 2 and 3. Return the number of tensors."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # A tied head has no tensor of its own in a published version.
    named = dict(model.named_parameters())
    random = np.random.default_rng(0)
    weights: list[Weights] = [
        {name: tensor.detach().view(torch.uint16).numpy() for name, tensor in named.items()}
    ]
    save_full(folder / "v1", weights[0])
    for number in (2, 3):
        # Other last bits of one weight in ten.
        changes = {
            name: (random.random(bits.shape) < 0.1).astype(np.uint16)
            for name, bits in weights[-1].items()
        }
        weights.append({name: bits ^ changes[name] for name, bits in weights[-1].items()})
        before, after = weights[-2:]
        save_delta(folder / f"v{number}", before, after, f"a:{number - 1}", f"a:{number}")
    save_full(folder / "whole", weights[-1])
    return len(named)


@pytest.mark.parametrize("kind", MODELS)
def test_a_patch_leaves_the_same_weights_as_the_whole_version(
    modules: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than the embedding of 12,800 bytes, and more than two small tensors.
    monkeypatch.setattr(modules.weight_patch, "CHUNK", 10_000)
    name, more = MODELS[kind]
    config = AutoConfig.for_model(name, **SIZES, **more)
    config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.save_pretrained(tmp_path / "model")
    tensors = versions(config, tmp_path)
    deltas = tuple(str(tmp_path / f"v{number}") for number in (2, 3))
    update = WeightUpdate(str(tmp_path / "v1"), "a:3", tensors, "delta", deltas=deltas)
    staged = Staging(tmp_path, whole=False).stage(update, "a:1")
    patched, whole = (modules.engine(tmp_path / "model") for _ in "ab")

    patched.receive_weights(modules.UpdateInfo(str(tmp_path / "v1"), tensors=tensors, tag="a:1"))
    assert modules.patchable(patched.model)
    patched.receive_weights(
        modules.UpdateInfo(
            staged.path, "delta", list(deltas), tensors, patch=staged.patch, tag="a:3"
        )
    )
    whole.receive_weights(modules.UpdateInfo(str(tmp_path / "whole"), tensors=tensors, tag="a:3"))

    assert patched.loads == 1
    expected = dict(whole.model.named_parameters())
    for name, parameter in patched.model.named_parameters():
        assert torch.equal(parameter.view(torch.int16), expected[name].view(torch.int16)), name
    if config.tie_word_embeddings:
        assert patched.model.lm_head.weight is patched.model.model.embed_tokens.weight
