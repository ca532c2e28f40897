"""A real vLLM that takes turns with the learner on a GPU: what it leaves there while it sleeps, and
what it serves afterwards. Needs an installation of Headrace for GPUs, and 4 GiB of the GPU."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM"),
]
PROMPT = list(range(5, 45))
CONTEXT = 512


def used() -> int:
    """Bytes of the GPU that all processes have."""
    free, every = torch.cuda.mem_get_info()
    return every - free


def test_a_sleeping_vllm_leaves_the_gpu_and_serves_a_patch_after_it(tmp_path: Path) -> None:
    torch.zeros(1, device="cuda")
    asyncio.run(sleep_and_patch(tmp_path))


async def sleep_and_patch(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from rollout.vllm.client.weight_loader import WeightUpdate
    from rollout.vllm.process.options import ServerConfig
    from rollout.vllm.process.server import VLLMServer
    from rollout.vllm.weights.staging import Staging
    from services.contracts.config.vllm import VLLM
    from services.estimate.rollout_memory import ASLEEP
    from tests.served import is_sleeping
    from tests.unit.weights.files import save_delta, save_full

    config = LlamaConfig(
        hidden_size=1024,
        num_hidden_layers=8,
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=32000,
        max_position_embeddings=CONTEXT,
        dtype="bfloat16",
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).bfloat16()
    first = {name: tensor.view(torch.uint16).numpy() for name, tensor in model.state_dict().items()}
    random = np.random.default_rng(0)
    second = {
        # Another sign of one weight in fifty.
        name: np.where(random.random(bits.shape) < 0.02, bits ^ 0x8000, bits).astype(np.uint16)
        for name, bits in first.items()
    }
    save_full(folder / "v1", first)
    save_full(folder / "v2", second)
    save_delta(folder / "delta", first, second, "aaaaaa:1", "aaaaaa:2")
    whole = [WeightUpdate(str(folder / f"v{n}"), f"aaaaaa:{n}", len(first)) for n in (1, 2)]
    delta = WeightUpdate(
        str(folder / "v1"), "aaaaaa:2", len(first), "delta", deltas=(str(folder / "delta"),)
    )
    config.save_pretrained(folder / "model")
    symbols = {str(number): number for number in range(100)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(symbols, unk_token="0")), eos_token="1"
    ).save_pretrained(folder / "model")

    before = used()
    server = VLLMServer(
        ServerConfig(
            folder / "model",
            VLLM(
                max_model_len=CONTEXT,
                max_num_seqs=8,
                gpu_memory_utilization=(4 << 30) / torch.cuda.mem_get_info()[1],
                sleeps=True,
            ),
            "bfloat16",
            "cuda",
        ),
        folder / "vllm.log",
    )
    policy = await server.start()
    try:
        weights = policy.weights

        async def scores() -> np.ndarray:
            return await policy.score(PROMPT, False)

        await weights.load(whole[0])
        old = await scores()
        awake = used() - before
        async with weights.asleep():
            assert await is_sleeping(server.socket)
            asleep = used() - before
            # As the learner would: what vLLM has left can be had.
            torch.empty(awake - asleep, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
        print(f"awake {awake / 1e9:.2f} GB, asleep {asleep / 1e9:.2f} GB")
        assert asleep <= ASLEEP
        assert np.array_equal(await scores(), old)

        await weights.load(Staging(server.folder, whole=False).stage(delta, "aaaaaa:1"))
        by_patch = await scores()
        async with weights.asleep():
            pass
        assert np.array_equal(await scores(), by_patch)
        await weights.load(whole[0])
        await weights.load(whole[1])
        assert np.array_equal(await scores(), by_patch)
        assert np.abs(by_patch - old).mean() > 0.01
    finally:
        await policy.close()
        await server.stop()
