"""LoRA: the policy is a frozen base with small adapters, and only the adapters are trained.

Versions and checkpoints hold the adapters. The base is written once, into the run's model folder,
in the published type. Workers, resumed learners and later runs read it there and verify its
checksums, so that all use the same bytes. Only functions that need peft import it, because most
runs have no adapters.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from learner.distributed import Ranks
from learner.errors import RunCannotGoOn, UnusableModel
from learner.model.loading.folders import find_source
from learner.model.loading.model_loader import LoadedModel, load_model
from learner.model.loading.saving import as_in_a_folder, on_host, weight_tensors
from learner.model.passes.logprobs import PackedRow, TokenLogprobs
from learner.slices import WHOLE, RankPart, rows_of, to_host
from services.contracts.config.lora import BESIDE_EXPERTS, LoRA
from services.contracts.config.model import PretrainedModel
from services.contracts.experts import expert_count
from services.contracts.weights import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MODEL_FILES,
    WeightFile,
)
from services.volume import check_file

PREFIX = "base_model.model."
"""Prefix that peft adds to the names of a model's layers."""
NAME = ".default"
"""peft's name of a model's only adapter. It is in parameter names but not in files."""


@dataclass(frozen=True)
class PolicyFolders:
    """The folders that a policy may be loaded from."""

    start: str
    """The model, a folder or a hub name, that the run's first step started from. It may be missing
    if there is a checkpoint. Empty if the run makes a model from scratch."""
    run: Path
    """The run's model folder, which may not exist yet."""
    checkpoint: Path | None = None
    """The checkpoint that the run resumes from."""


def load_policy(
    config: PretrainedModel,
    folders: PolicyFolders,
    seed: int,
    device: torch.device | str = "cpu",
    sharing: Ranks | None = None,
) -> LoadedModel:
    """Load the policy from the run's checkpoint, else from the model that it starts from. With
    `model.lora` the base is the checkpoint's base, else the base in the run's model folder, if it
    exists. The caller must check the base (`check_files`). `sharing`: see `load_model`.

    Raises UnusableModel, and RunCannotGoOn for a checkpoint with other adapters.
    """
    checkpoint = folders.checkpoint
    if config.lora is None:
        return load_model(str(checkpoint or folders.start), config, device, sharing=sharing)
    base = base_of(config, folders)
    loaded = load_model(base, config, device, frozen=True, sharing=sharing)
    add_adapters(loaded, config.lora, seed)
    if checkpoint is not None:
        load_adapters(loaded, checkpoint)
    return loaded


def base_of(config: PretrainedModel, folders: PolicyFolders) -> str:
    """Return the folder of the frozen base. See `load_policy`."""
    if folders.checkpoint is None:
        return str(folders.run) if folders.run.exists() else folders.start
    source = find_source(str(folders.checkpoint), config.trust_remote_code)
    return folders.start if source.adapter is None else source.weights


def check_files(folder: Path, part: RankPart = WHOLE) -> None:
    """Verify `part` of a run's model folder against its list of files. Do nothing for another
    folder. Raises DamagedFile, and RunCannotGoOn if a file is missing or the list is invalid."""
    index = folder / MODEL_FILES
    if not index.is_file():
        return
    try:
        files = msgspec.json.decode(index.read_bytes(), type=list[WeightFile])
    except (msgspec.MsgspecError, RecursionError, OSError) as error:
        raise UnusableModel(f"{index} is no list of files: {error}") from error
    # The largest file first, dealt to the ranks in turn.
    files.sort(key=lambda file: (-file.bytes, file.name))
    for number, file in enumerate(files):
        if ".." in Path(file.name).parts or Path(file.name).is_absolute():
            raise UnusableModel(f"{index} names {file.name!r}, which lies elsewhere")
        try:
            checksum = file.xxh3 if number % part.count == part.number else None
            check_file(folder / file.name, file.bytes, checksum, f"{folder}/{file.name}")
        except FileNotFoundError:
            raise RunCannotGoOn(
                f"{folder} lacks {file.name}: without it nobody knows what its adapters were "
                "trained beside"
            ) from None


def add_adapters(loaded: LoadedModel, lora: LoRA, seed: int) -> None:
    """Freeze the model, convert it to the published type, and add float32 adapters to its layers.
    At first they change nothing: B is 0, and A is random from `seed`.

    Raises UnusableModel for targets that the model lacks, and for a mixture of experts.
    """
    from peft import LoraConfig, inject_adapter_in_model

    model = loaded.model
    if expert_count(model.config):
        raise UnusableModel(f"model.lora: {BESIDE_EXPERTS}")
    targets = targeted(model, lora)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(
                LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets), model
            )
        except ValueError as error:
            raise UnusableModel(f"model.lora.targets: {error}") from error
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.dtype != loaded.publish_dtype:
            parameter.data = parameter.data.to(loaded.publish_dtype)
    loaded.lora = lora.model_copy(update={"targets": targets})


def targeted(model: PreTrainedModel, lora: LoRA) -> list[str]:
    """Return the targeted layer name suffixes, in peft's form. Raises UnusableModel for a target
    that is not a linear layer."""
    head = model.get_output_embeddings()
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    ends = sorted({name.rpartition(".")[2] for name in layers})
    for target in lora.targets or []:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            raise UnusableModel(
                f"model.lora.targets: {target!r} is no linear layer of this model (the output head "
                f"cannot have an adapter); it has {', '.join(ends)}"
            )
    return lora.targets or ends


def adapter_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the adapters' weights, by their names in peft's files."""
    return {_in_file(name): p.detach() for name, p in model.named_parameters() if ".lora_" in name}


def trained_on_host(
    loaded: LoadedModel,
    dtype: torch.dtype | None = None,
    part: RankPart | None = WHOLE,
    copy: Callable[[torch.Tensor], torch.Tensor] = to_host,
) -> dict[str, torch.Tensor]:
    """Return a host copy of the weights that training changes, by their names in files, in their
    own type or in `dtype`. `part` and `copy`: see `on_host`."""
    if loaded.lora:
        return on_host(adapter_tensors(loaded.model), dtype, part, copy)
    weights = on_host(weight_tensors(loaded.model), dtype, part, copy)
    return as_in_a_folder(loaded.model, weights)


def load_adapters(loaded: LoadedModel, folder: Path) -> None:
    """Load a checkpoint's adapters. Raises RunCannotGoOn if their shapes differ."""
    path = folder / ADAPTER_WEIGHTS
    try:
        saved = load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunCannotGoOn(f"the adapters in {path} cannot be read: {error}") from error
    adapters = adapter_tensors(loaded.model)
    if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in adapters.items()}:
        raise RunCannotGoOn(
            f"the adapters in {path} are others than those of model.lora: its rank and targets "
            "cannot change where a run goes on"
        )
    for name, tensor in adapters.items():
        tensor.copy_(rows_of(saved[name], tensor))


def save_adapter_config(loaded: LoadedModel, folder: Path, base: str | None) -> None:
    """Write the config that peft and vLLM read in an adapter's folder. `base`: its base model."""
    from peft import LoraConfig

    assert loaded.lora is not None
    config = LoraConfig(
        r=loaded.lora.rank,
        lora_alpha=loaded.lora.alpha,
        target_modules=loaded.lora.targets,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    written: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=sorted))
    (folder / ADAPTER_CONFIG).write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")


def base_on_host(loaded: LoadedModel, part: RankPart | None = WHOLE) -> dict[str, torch.Tensor]:
    """Return a host copy of the frozen weights, by their names in the model without adapters.
    `part`: see `on_host`."""
    frozen = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in weight_tensors(loaded.model).items()
        if ".lora_" not in name
    }
    return on_host(frozen, part=part)


def save_base(loaded: LoadedModel, folder: Path, base: dict[str, torch.Tensor]) -> None:
    """Write `base`, the frozen weights, and an adapter of zeros, with which a server starts. Runs
    with the same base and shape get the same files, and can share a server."""
    save_file(base, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / ADAPTER).mkdir()
    save_adapter_config(loaded, folder / ADAPTER, None)
    nothing = {
        name: torch.zeros(tensor.shape, dtype=loaded.publish_dtype)
        for name, tensor in adapter_tensors(loaded.model).items()
    }
    save_file(nothing, folder / ADAPTER / ADAPTER_WEIGHTS, metadata={"format": "pt"})


class BaseLogprobs(nn.Module):
    """A policy without its adapters: a reference that takes no extra memory."""

    def __init__(self, policy: TokenLogprobs) -> None:
        from peft.tuners.lora import LoraLayer

        super().__init__()
        self.policy = policy
        self.layers = [layer for layer in policy.model.modules() if isinstance(layer, LoraLayer)]

    @property
    def model(self) -> PreTrainedModel:
        return self.policy.model

    def forward(
        self, row: PackedRow, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See TokenLogprobs. For passes without gradient."""
        for layer in self.layers:
            layer.enable_adapters(False)
        try:
            result: tuple[torch.Tensor, torch.Tensor] = self.policy(row, temperature)
        finally:
            for layer in self.layers:
                layer.enable_adapters(True)
        return result


def _in_file(name: str) -> str:
    return PREFIX + name.replace(f"{NAME}.", ".")
