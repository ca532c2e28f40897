"""Builds vLLM's command line and environment from a run's `rollout.vllm` section. Pure.

The endpoints that `VLLM_SERVER_DEV_MODE` opens let anyone replace the policy, and write files. So
the server listens on no port, but on a Unix socket in a folder that only its user can enter. It
answers only on the routes that Headrace uses.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import xxhash

from rollout.vllm.client.response import SERVED_NAME
from rollout.vllm_plugin.lora_slot import AdapterSlot
from rollout.vllm_plugin.register import NAME as TRANSFER_ENGINE
from rollout.vllm_plugin.register import OWNED
from rollout.vllm_plugin.routes import ONLY_ROUTES_IN_USE
from services.contracts.config.vllm import RECORD_ROUTING, VLLM, spelled
from services.runtime.gpus import ALONE_MEMORY, Device

CPU_BLOCK = 32
"""Tokens in a block of the prefix cache: the fewest that vLLM's CPU kernels support. Only whole
blocks are found again, and an agent's turn seldom fills one of vLLM's 128."""
MAX_LORAS = "max-loras"
BASE_NAME = "base"
"""vLLM's name for the frozen weights of a run with an adapter."""
# vLLM may run code from a model's folder, so it gets no secrets. It is offline and needs no token.
SECRET = frozenset(
    f"HEADRACE_{name}{ending}"
    for name in ("REDIS_URL", "REDIS_PASSWORD", "API_KEY", "REWARD_KEY", "ENDPOINT_KEYS")
    for ending in ("", "_FILE")
) | {
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    # Keys of the bucket for payloads.
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
}


@dataclass(frozen=True)
class ServerConfig:
    """The settings of one server."""

    model: Path
    """The exported folder."""
    options: VLLM
    dtype: str
    """The type of the published weights, for `auto`."""
    device: Device
    command: str | None = None
    """Replaces `python -m rollout.vllm_plugin.serve`, split as by a shell."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Options that follow from the run's config."""


def with_memory(options: VLLM, here: float | None) -> VLLM:
    """Return a run's options, with this worker's share of GPU memory (`here`) if they name none."""
    if options.gpu_memory_utilization is not None or here is None:
        return options
    return options.model_copy(update={"gpu_memory_utilization": here})


def fingerprint(
    model: Path, options: VLLM, dtype: str, more: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return a digest that is equal for two runs that can use one server: same architecture,
    tokenizer, options, and `more` options that follow from the run's config.

    `model` is the exported folder. Every file in it counts; weights count by their checksums in the
    folder's list of files.
    """
    digest = xxhash.xxh3_64()
    files = (path for path in model.rglob("*") if path.suffix != ".safetensors" and path.is_file())
    for file in sorted(files):
        digest.update(file.relative_to(model).as_posix().encode() + b"\0" + file.read_bytes())
    digest.update(f"{dtype}\0{options.model_dump_json()}\0{json.dumps(dict(more))}".encode())
    return digest.hexdigest()


def command_line(config: ServerConfig, socket: Path, slot: AdapterSlot | None = None) -> list[str]:
    """Return the server's arguments. It listens on the Unix socket `socket`. `slot` is the
    adapter's, if the policy is an adapter. Raises ValueError for what this vLLM cannot do."""
    options, device, command = config.options, config.device, config.command
    extra = {spelled(name): value for name, value in options.extra.items()}
    if device == "cpu" and extra.get(RECORD_ROUTING) and command is None:
        # vLLM's CPU runner cannot do it (0.32), and its error does not name the key.
        raise ValueError(
            "algorithm.router.replay needs the experts that vLLM sends tokens to, which its build "
            "for CPUs cannot return: set it to false, or sample on a GPU"
        )
    if device == "cpu" and options.ngram_tokens and command is None:
        # Measured with 0.32: tokens that the policy gives 0.1 come with a log-probability of -inf,
        # and top_k ends the engine.
        raise ValueError(
            "rollout.vllm.ngram_tokens: vLLM's build for CPUs reports wrong log-probabilities of "
            "guessed tokens: set it to 0, or sample on a GPU"
        )
    if device == "cpu" and options.sleeps and command is None:
        raise ValueError(
            "rollout.vllm.sleeps: vLLM's build for CPUs cannot sleep: set it to false, or sample "
            "on a GPU"
        )
    flags: dict[str, Any] = {
        "model": str(config.model),
        "served-model-name": SERVED_NAME,
        "uds": str(socket),
        "load-format": "dummy",
        "dtype": config.dtype if options.computes_in == "auto" else options.computes_in,
        "quantization": options.quantization,
        "max-num-seqs": options.max_num_seqs,  # None: vLLM chooses
        "tensor-parallel-size": options.tensor_parallel_size,
        "logprobs-mode": "processed_logprobs",
        # The canary is scored before waiting requests (`PolicyClient.score`).
        "scheduling-policy": "priority",
        "disable-uvicorn-access-log": True,
        "middleware": ONLY_ROUTES_IN_USE,
        "weight-transfer-config": {"backend": TRANSFER_ENGINE},
        **{name: value for name, value in config.more.items() if name != MAX_LORAS},
    }
    if options.max_model_len is not None:
        flags["max-model-len"] = options.max_model_len
    if options.sleeps:
        flags["enable-sleep-mode"] = True
    if options.ngram_tokens:
        flags["speculative-config"] = {
            "method": "ngram",
            "num_speculative_tokens": options.ngram_tokens,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        }
    if slot is not None:
        flags |= {
            "served-model-name": BASE_NAME,
            "load-format": "safetensors",
            "enable-lora": True,
            "max-lora-rank": slot.max_rank,
            "max-loras": config.more.get(MAX_LORAS, 1),
            # Otherwise the output head gets an adapter as well, and computes it at every token.
            "lora-target-modules": slot.targets,
            "lora-modules": {
                "name": SERVED_NAME,
                "path": str(slot.folder),
                "base_model_name": BASE_NAME,
            },
        }
    if device == "cpu":
        flags["enforce-eager"] = True  # compiling takes minutes on few cores and gains little
        flags["block-size"] = CPU_BLOCK
    else:
        flags["gpu-memory-utilization"] = options.gpu_memory_utilization or ALONE_MEMORY
    stock = [sys.executable, "-m", "rollout.vllm_plugin.serve"]
    start = shlex.split(command) if command else stock
    return start + [part for name, value in (flags | extra).items() for part in flag(name, value)]


def flag(name: str, value: Any) -> list[str]:
    """Return one option as vLLM's parser takes it: true `--x`, false `--no-x`, null nothing, a list
    `--x a b`, a mapping JSON."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, list | tuple):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]


def environment(
    inherited: Mapping[str, str], device: Device, kv_cache_gib: int, folder: Path
) -> dict[str, str]:
    """Return the server's environment: the operator's variables for vLLM, without secrets, and with
    those that Headrace needs. `folder` is for temporary files, since a killed vLLM deletes none."""
    defaults = {
        # uvicorn's 5 seconds would close idle connections just as requests are sent.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    if device == "cpu":
        defaults["VLLM_CPU_KVCACHE_SPACE"] = str(kv_cache_gib)
    if device == "cuda":
        # vLLM's attention in float32 is Triton's, whose products would round to 10 bits (TF32).
        defaults["TRITON_F32_DEFAULT"] = "ieee"
    needed = {
        "VLLM_SERVER_DEV_MODE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        OWNED: "1",
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder),
        # Several processes of one vLLM connect to each other, without a secret: on this host alone.
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "=lo",
        "NCCL_RAS_ENABLE": "0",
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]
        ),
    }
    passed_on = {name: value for name, value in inherited.items() if name not in SECRET}
    return defaults | passed_on | needed
