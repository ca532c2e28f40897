"""The canary of a version: the published weights' log-probabilities of fixed sequences."""

import msgspec
import numpy as np
import torch

from learner.distributed import Ranks
from learner.model.canary import CanaryPass
from learner.model.loading.lora import add_adapters
from learner.model.loading.model_loader import LoadedModel
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.placement.parallel import replicate
from services.contracts.canary import Canary, sequences, unpacked
from services.contracts.config.lora import LoRA
from services.contracts.weights import WeightFile, WeightManifest, decode_manifest
from tests.unit.learner.policies import tiny_model
from tests.unit.learner.test_lora import adapted, randomised

ALONE = Ranks(0, 1, torch.device("cpu"))
FILE = WeightFile("v7.safetensors", 12, "ab")
LONGEST = 63
"""The tiny model's 64 positions, minus one for the token that vLLM samples."""


def canary_of(loaded: LoadedModel, context: int | None = None) -> Canary:
    canary = CanaryPass(loaded, TokenLogprobs(loaded.model, loaded.autocast), context)()
    assert canary is not None
    return canary


def by_transformers(loaded: LoadedModel) -> np.ndarray:
    found = []
    for tokens in sequences(len(loaded.tokenizer), LONGEST):
        ids = torch.tensor(tokens)
        with torch.no_grad():
            logprobs = loaded.model(ids[None]).logits[0].log_softmax(-1)
        found.append(logprobs[:-1].gather(1, ids[1:, None]).squeeze(1))
    return torch.cat(found).numpy()


def test_the_canary_is_what_transformers_computes() -> None:
    loaded = tiny_model()
    canary = canary_of(loaded)
    assert (canary.dtype, canary.longest) == ("float32", LONGEST)
    np.testing.assert_allclose(unpacked(canary.logprobs), by_transformers(loaded), atol=1e-5)
    assert canary.without_adapter == b""
    assert canary_of(loaded) == canary
    assert canary_of(tiny_model(seed=1)).logprobs != canary.logprobs


def test_vllm_s_context_bounds_the_sequences() -> None:
    canary = canary_of(tiny_model(), context=16)
    assert canary.longest == 15
    assert len(unpacked(canary.logprobs)) == 2 * 14


def test_a_model_without_room_for_a_sequence_has_no_canary() -> None:
    loaded = tiny_model()
    assert CanaryPass(loaded, TokenLogprobs(loaded.model), 4)() is None


def test_an_adapter_s_canary_holds_what_the_base_alone_computes() -> None:
    loaded = randomised(adapted())
    canary = canary_of(loaded)
    assert canary.without_adapter == canary_of(tiny_model()).logprobs
    assert canary.logprobs != canary.without_adapter
    # The policy keeps its adapters.
    assert canary_of(loaded).logprobs == canary.logprobs


def test_the_adapter_s_canary_stays_whole_over_versions() -> None:
    loaded = tiny_model()
    add_adapters(loaded, LoRA(rank=4, alpha=8), 0)
    make = CanaryPass(loaded, replicate(TokenLogprobs(loaded.model), ALONE), None)
    first = make()
    randomised(loaded)
    second = make()
    assert first is not None
    assert second is not None
    assert second.without_adapter == first.without_adapter == first.logprobs
    assert second.logprobs != first.logprobs


def test_a_manifest_carries_its_canary_in_less_than_two_kilobytes() -> None:
    canary = Canary("bfloat16", 150_000, 4095, b"\x01" * 166 * 4, b"\x02" * 166 * 4)
    manifest = WeightManifest("r", 7, "9f3a1c", "full", [FILE], 3, "m", canary=canary)
    text = msgspec.json.encode(manifest)
    assert decode_manifest(text) == manifest
    assert len(text) < 2200
