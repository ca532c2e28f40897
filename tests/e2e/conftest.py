"""One real vLLM server for the tests of one file, and the small model it serves.

Starting vLLM takes half a minute, so tests share one server. A test leaves it with the weights
`full_a`, unless its docstring says otherwise. The server starts with random weights, as for a run.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.cli.client import Gateway
from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.client.weight_loader import WeightUpdate
from rollout.vllm.process.options import ServerConfig
from rollout.vllm.process.server import VLLMServer
from services.cli.host.demo import upload_sums
from services.contracts.config.vllm import VLLM
from services.launch import Stack, UpOptions
from services.runtime.gpus import installed_device

VOCABULARY = 32
CONTEXT = 1024


@dataclass(frozen=True)
class TinyModel:
    """A Llama of one million parameters: a folder without weights as the learner exports it, and
    two snapshots of different weights."""

    folder: Path
    full_a: Path
    full_b: Path
    tensors: int


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A model with seeded random weights."""
    import torch
    from safetensors import safe_open
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("tiny-model")
    config = LlamaConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="float32",
    )
    snapshots = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
        # Larger than initialized: the two policies must differ clearly, token by token.
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(3)
        model.save_pretrained(root / f"full-{seed}")
        snapshots.append(root / f"full-{seed}" / "model.safetensors")
    folder = root / "model"
    config.save_pretrained(folder)
    symbols = ["<bos>", "<eos>", "<pad>", *"0123456789+-*/=() ?abcdefghijk"]
    tokenizer = Tokenizer(
        models.WordLevel({s: i for i, s in enumerate(symbols[:VOCABULARY])}, unk_token="<pad>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(folder)
    with safe_open(snapshots[0], framework="pt") as file:
        tensors = len(file.keys())
    return TinyModel(folder, snapshots[0], snapshots[1], tensors)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm_server(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VLLMServer]:
    """The running server. Tests talk to it through `policy`."""
    server = VLLMServer(
        ServerConfig(
            tiny_model.folder,
            VLLM(max_model_len=CONTEXT, max_num_seqs=64, startup_seconds=300),
            "float32",
            installed_device(),
        ),
        tmp_path_factory.mktemp("vllm") / "vllm.log",
    )
    client = await server.start()
    await client.close()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def policy(vllm_server: VLLMServer, tiny_model: TinyModel) -> AsyncIterator[PolicyClient]:
    """A client whose server has the weights `full_a` under the tag `aaaaaa:1`."""
    client = PolicyClient(vllm_server.socket)
    async with asyncio.timeout(100):
        await client.weights.load(snapshot(tiny_model, tiny_model.full_a, "aaaaaa:1"))
    yield client
    await client.close()


def snapshot(model: TinyModel, path: Path, tag: str) -> WeightUpdate:
    """`path` as a full snapshot of version `tag`."""
    return WeightUpdate(str(path), tag, model.tensors)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A whole installation with the demo's datasets, for the tests of one file."""
    data: Path = tmp_path_factory.mktemp("installation")
    with Stack(UpOptions(data=data, port=0, reward_port=0)) as stack:
        gateway = Gateway(stack.gateway_url, key=stack.api_key)
        upload_sums(gateway)
        yield gateway
