"""The weight-transfer engine `safetensors`: loads a published file into the running model, in
place.

A server updates either all its weights, or an adapter over frozen weights that it read at its
start. The engine checks a file's names and shapes before it changes the model. If a load breaks
later, the worker keeps vLLM paused until a whole version is loaded. All work happens in
`receive_weights`: if `start_weight_update` took the model apart, a refused file would leave it so.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from rollout.vllm_plugin.lora_slot import AdapterSlot
from rollout.vllm_plugin.weight_file import (
    WEIGHTS_KEPT,
    WEIGHTS_MIXED,
    Tensors,
    UnusableFile,
    check_delta_files,
    check_tensors,
    read_tensors,
    some,
    stream,
)
from rollout.vllm_plugin.weight_patch import apply_patch, check_patch, patchable


class WeightTransferError(RuntimeError):
    """An update that failed. The text begins with `WEIGHTS_KEPT` or `WEIGHTS_MIXED`."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Empty without an adapter: files need no rendezvous."""

    adapter: str | None = None
    """Folder of the server's `AdapterSlot`, if updates are of an adapter."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The files to load: a whole file at `path` on this host, the `deltas` after it, and their kind
    of publication."""

    path: str
    kind: str = "full"
    deltas: list[str] = field(default_factory=list)
    tensors: int | None = None
    """Number of tensors by the manifest; None: not compared."""
    whole: str = ""
    """A staged file: `path` with `deltas` applied."""
    patch: str = ""
    """A staged file of the changes from the loaded version."""
    tag: str = ""
    """The version."""
    extra: dict[str, Any] = field(default_factory=dict)


class SafetensorsEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads full weights in checkpoint format, or adapters in peft's."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tensors: Tensors | None = None
        """Those of every version of this server, from the first load on."""
        self._live = ""
        """The version in the model; empty if none is whole."""
        self._slot: AdapterSlot | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Expect adapters like the one that vLLM loaded when it started."""
        if init_info.adapter is not None:
            if ignored := self._ignored_layers():
                raise WeightTransferError(
                    f"vLLM does not apply this model's adapters to {some(ignored)}: leave these "
                    "layers out of model.lora.targets"
                )
            self._slot = AdapterSlot(Path(init_info.adapter))
            self._tensors = read_tensors(self._slot.weights)

    def _ignored_layers(self) -> list[str]:
        """Return the adapter's layers that vLLM would silently ignore."""
        if self.parallel_config.pipeline_parallel_size > 1:
            return []  # This process has only some of the layers.
        manager = self.model.lora_manager
        (adapter,) = manager.list_adapters().values()
        return sorted(adapter.loras.keys() - manager.modules.keys())

    def start_weight_update(self) -> None:
        """Do nothing; see the module docstring."""

    def finish_weight_update(self) -> None:
        """Do nothing: the model is whole when `receive_weights` returns."""

    def shutdown(self) -> None:
        """Do nothing, since no resource is open."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """See the base class, which synchronizes an accelerator even on a CPU."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load one version. Raises WeightTransferError. The model then has its old weights, unless
        the text begins with `WEIGHTS_MIXED`: then it must not sample."""
        kinds = ("full", "delta") if self._slot is None else ("adapter",)
        try:
            if update_info.kind not in kinds:
                raise UnusableFile(
                    f"this worker cannot apply weights of kind {update_info.kind!r} (it knows "
                    f"{', '.join(kinds)})"
                )
            tensors = _checked(update_info, self._tensors)
            if self._slot is not None:
                # At `finish` vLLM drops the adapter that it has read.
                self._slot.put(Path(update_info.path))
                return
            patch = self._usable_patch(update_info, tensors)
        except (UnusableFile, OSError) as error:
            raise WeightTransferError(f"{WEIGHTS_KEPT}: {error}") from error
        self._live = ""
        try:
            if patch is not None:
                apply_patch(self.model, patch, tensors, self.device)
            elif update_info.whole:
                self._load(Path(update_info.whole), [])
            else:
                self._load(Path(update_info.path), [Path(delta) for delta in update_info.deltas])
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise WeightTransferError(f"{WEIGHTS_MIXED}: {what}") from error
        self._tensors, self._live = tensors, update_info.tag

    def _usable_patch(self, update_info: UpdateInfo, tensors: Tensors) -> Path | None:
        """Return the staged patch if the model can be patched. Raises UnusableFile for staged files
        that do not fit the version."""
        if update_info.whole:
            whole = Path(update_info.whole)
            check_tensors(whole, read_tensors(whole), tensors)
        elif update_info.deltas:
            check_delta_files(Path(update_info.path), [Path(delta) for delta in update_info.deltas])
        if not update_info.patch or not self._live or not patchable(self.model):
            return None
        patch = Path(update_info.patch)
        check_patch(patch, self._live, update_info.tag, tensors)
        return patch

    def _load(self, path: Path, deltas: list[Path]) -> None:
        """Load every tensor of `path` with `deltas` applied. Raises UnusableFile if a parameter has
        no tensor."""
        parameters = {name for name, _ in self.model.named_parameters()}
        if self.device.type == "cpu":
            forget_packed_experts(self.model)
        initialize_layerwise_reload(self.model)
        # Layers now have only what a checkpoint has. Scales are computed from the loaded weights.
        parameters &= {name for name, _ in self.model.named_parameters()}
        try:
            loaded = self.model.load_weights(stream(path, deltas))
        finally:
            # Also after an error, so that layers that were taken apart get their tensors back.
            finalize_layerwise_reload(self.model, self.model_config)
            if self.device.type == "cpu":
                pack_tied_layers(self.model)
        if loaded is not None and (missing := sorted(parameters - set(loaded))):
            raise UnusableFile(
                f"{path} has no weights for {len(missing)} parameters, e.g. {missing[0]}"
            )


def _checked(update_info: UpdateInfo, expected: Tensors | None) -> Tensors:
    """Return the file's tensors. Raises UnusableFile unless their number is as promised, and they
    are as `expected`."""
    path = Path(update_info.path)
    tensors = read_tensors(path)
    if update_info.tensors is not None and len(tensors) != update_info.tensors:
        raise UnusableFile(
            f"{path} holds {len(tensors)} tensors, its manifest says {update_info.tensors}"
        )
    if expected is not None:
        check_tensors(path, tensors, expected)
    return tensors


def forget_packed_experts(model: torch.nn.Module) -> None:
    """Make the next load pack the weights of experts again.

    vLLM's CPU engine packs the weights of experts only when it sets up their kernel (0.32). A
    reload would put plain weights where the kernel expects packed ones. So the kernel is set up
    again.
    """
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method.moe_kernel = None


def pack_tied_layers(model: torch.nn.Module) -> None:
    """Pack again what layers derive from a parameter that they share with another layer.

    vLLM's CPU engine multiplies by a packed copy of a weight. A reload renews the copies of the
    layers that it loads. It does not load an output head tied to the embedding, which would keep
    the copy of the old weights.
    """
    users: dict[int, list[torch.nn.Module]] = {}
    for layer in model.modules():
        for parameter in layer.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(layer)
    for layers in users.values():
        for layer in layers if len(layers) > 1 else ():
            method = getattr(layer, "quant_method", None)
            if isinstance(method, QuantizeMethodBase):
                method.process_weights_after_loading(layer)
