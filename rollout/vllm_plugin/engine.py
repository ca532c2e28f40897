"""The weight-transfer engine `safetensors`: loads a published file into the running model, in
place.

A server updates either all its weights, or an adapter over frozen weights that it read at its
start.

The engine must never leave a model with mixed weights. So it checks the file's names and shapes
before it changes the model. If a load still breaks, it loads the last good file again. All work
happens in `receive_weights`: if `start_weight_update` took the model apart, a refused file would
leave it so.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger
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
    check_chain,
    check_tensors,
    read_tensors,
    some,
    stream,
)
from rollout.vllm_plugin.weight_patch import apply_patch, check_patch, patchable

logger = init_logger(__name__)


class WeightTransferError(RuntimeError):
    """An update that failed. The text begins with `WEIGHTS_KEPT` or `WEIGHTS_MIXED`."""


@dataclass(frozen=True)
class LoadedFile:
    """The weight files in the model."""

    path: Path
    deltas: list[Path]
    tensors: Tensors
    tag: str


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
        self._live: LoadedFile | None = None
        self._slot: AdapterSlot | None = None
        self._adapter: Tensors = {}

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Expect adapters like the one that vLLM loaded when it started."""
        if init_info.adapter is not None:
            if ignored := self._ignored_layers():
                raise WeightTransferError(
                    f"vLLM does not apply this model's adapters to {some(ignored)}: leave these "
                    "layers out of model.lora.targets"
                )
            self._slot = AdapterSlot(Path(init_info.adapter))
            self._adapter = read_tensors(self._slot.weights)

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
        """Do nothing: there is no open resource."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """See the base class, which synchronizes an accelerator even on a CPU."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load one version. Raises WeightTransferError. The model then has its old weights, unless
        the text begins with `WEIGHTS_MIXED`: then it must not sample."""
        loaders = {"full": self._receive_full, "delta": self._receive_full}
        if self._slot is not None:
            loaders = {"adapter": partial(self._receive_adapter, self._slot)}
        try:
            loader = loaders[update_info.kind]
        except KeyError:
            raise WeightTransferError(
                f"{WEIGHTS_KEPT}: this worker cannot apply weights of kind "
                f"{update_info.kind!r} (it knows {', '.join(loaders)})"
            ) from None
        loader(update_info)

    def _receive_adapter(self, slot: AdapterSlot, update_info: UpdateInfo) -> None:
        """Put the file into the slot. At `finish` vLLM drops the adapter that it has read."""
        try:
            _checked(update_info, self._adapter)
            slot.put(Path(update_info.path))
        except (UnusableFile, OSError) as error:
            raise WeightTransferError(f"{WEIGHTS_KEPT}: {error}") from error

    def _receive_full(self, update_info: UpdateInfo) -> None:
        path, deltas = Path(update_info.path), [Path(delta) for delta in update_info.deltas]
        whole = Path(update_info.whole) if update_info.whole else None
        patch = Path(update_info.patch) if update_info.patch else None
        live = self._live
        try:
            tensors = _checked(update_info, live.tensors if live else None)
            if whole:
                check_tensors(whole, read_tensors(whole), tensors)
            elif deltas:
                check_chain(path, deltas)
            if patch and (not live or not patchable(self.model)):
                patch = None
            elif patch and live:
                check_patch(patch, live.tag, update_info.tag, tensors)
        except UnusableFile as error:
            raise WeightTransferError(f"{WEIGHTS_KEPT}: {error}") from error
        try:
            if patch:
                apply_patch(self.model, patch, tensors, self.device)
            elif whole:
                self._load(whole, [])
            else:
                self._load(path, deltas)
        except Exception as error:
            self._put_back(error)
        self._live = LoadedFile(path, deltas, tensors, update_info.tag)

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

    def _put_back(self, cause: Exception) -> None:
        """Load the last good file again after `cause` broke a load half way. Always raises."""
        what = f"{type(cause).__name__}: {cause}"
        # Until it is back, no patch may change mixed weights.
        live, self._live = self._live, None
        if live is None:
            raise WeightTransferError(
                f"{WEIGHTS_MIXED}: {what} (nothing was loaded before, so nothing can be put back)"
            ) from cause
        logger.warning("loading broke half way (%s); putting %s back", what, live.path)
        try:
            self._load(live.path, live.deltas)
        except Exception as again:
            raise WeightTransferError(
                f"{WEIGHTS_MIXED}: {what}; and {live.path} could not be put back: {again}"
            ) from again
        self._live = live
        raise WeightTransferError(f"{WEIGHTS_KEPT}: {what}") from cause


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
