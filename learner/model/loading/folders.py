"""Find the model folders for a `model.path`, check that they are safe to load, and measure them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, PreTrainedModel

from learner.distributed import Ranks
from learner.errors import UnusableModel
from learner.model.loading.kept_files import DESCRIPTIONS
from services.contracts.config.model import ScratchModel
from services.estimate.model_shape import scratch_shape
from services.models import ModelFolder, UnusableFolder
from services.models.errors import printable
from services.models.path import check_base, check_model
from services.runtime.host_load import free_memory
from services.runtime.panics import is_panic

NUMBERS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
READ = [*DESCRIPTIONS, "*.safetensors"]
"""Files of a hub repository that are fetched. None of them can contain code."""
NOT_READ = ["*/*.safetensors", "consolidated*"]
"""Copies of the weights in other layouts."""
BYTES = 4
"""Bytes of a float32 number."""
LAYER_BYTES = 300_000
"""Fewest bytes that the modules of a layer take without its weights."""


@dataclass(frozen=True)
class ModelSource:
    """The folders that a model is loaded from."""

    folder: str
    """Folder of the tokenizer, and of the adapter if there is one."""
    weights: str
    """Folder of the weights. For an adapter: the folder of its base."""
    adapter: dict[str, Any] | None
    """The adapter's config."""
    model: ModelFolder
    """The checked folder of the weights."""


def find_source(path: str, trust_remote_code: bool, what: str = "model") -> ModelSource:
    """Return the folders of the model at `path`, a folder or a hub name, all checked. Raises
    UnusableModel, which calls the model `what`."""
    folder = Path(path) if Path(path).exists() else _from_hub(path, trust_remote_code, what)
    try:
        model = check_model(folder)
        weights = model.weights
        if weights is None:
            weights = check_base(_from_hub(str(model.base), trust_remote_code, what))
    except UnusableFolder as error:
        raise UnusableModel(f"{what} {path}: {error}") from error
    return ModelSource(str(folder), str(weights.path), model.named.adapter, weights)


def _from_hub(name: str, trust_remote_code: bool, what: str) -> Path:
    """Return the folder with the files of the hub's repository `name`, in this host's cache. Raises
    UnusableModel."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UnusableModel(why_not(name, FileNotFoundError(name), what))
    code = ["*.py"] if trust_remote_code else []
    try:
        return Path(snapshot_download(name, allow_patterns=READ + code, ignore_patterns=NOT_READ))
    except Exception as error:
        raise UnusableModel(why_not(name, error, what)) from error


@contextmanager
def unusable(path: str, what: str = "model") -> Iterator[None]:
    """Raise UnusableModel for any error of a library that loads the model at `path`: folders break
    in more ways than libraries name."""
    try:
        yield
    except UnusableModel:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            raise UnusableModel(why_not(path, error, what)) from error
        raise


def numbers_of(kind: Any, source: ModelSource, **options: Any) -> int:
    """Count the numbers in a model, by its config. `kind`: the class that loads the model, with
    `options`."""
    trust = options.pop("trust_remote_code")
    config = AutoConfig.from_pretrained(source.weights, trust_remote_code=trust, **options)
    with torch.device("meta"):
        model = kind.from_config(config, trust_remote_code=trust)
    return sum(t.numel() for t in (*model.parameters(), *model.buffers()))


def scratch_numbers(config: ScratchModel) -> int:
    return max(scratch_shape(config).parameters, config.layers * LAYER_BYTES // BYTES)


def check_size(path: str, numbers: int, dtype: torch.dtype, ranks: Ranks | None) -> None:
    """Raise UnusableModel if the model at `path`, with this many `numbers` of `dtype`, does not fit
    in this machine's memory. `ranks`: the ranks that share the model, or None if each rank holds
    the whole model."""
    needed, free = numbers * dtype.itemsize, free_memory()
    if ranks is not None:
        needed = needed * ranks.local_size // ranks.size
    if needed > free:
        kind = str(dtype).removeprefix("torch.")
        raise UnusableModel(
            f"model {path}: {needed / 2**30:,.1f} GiB of memory in {kind}, and this machine has "
            f"{free / 2**30:.1f} GiB free: take a smaller model, or a machine with more memory"
        )


def check_tied(path: str, model: PreTrainedModel) -> None:
    """Raise UnusableModel for a separate output head in a model whose config ties it to the
    embedding: vLLM reads the config, and would use the embedding."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    can_tie = bool(getattr(model, "_tied_weights_keys", None)) and head is not None
    if tied and can_tie and head.weight is not embedding.weight:
        raise UnusableModel(
            f"model {path}: config.json says tie_word_embeddings, and the files have another "
            "output head: set it to false"
        )


def check_finite(path: str, model: PreTrainedModel) -> None:
    """Raise UnusableModel for weights that are no numbers: such a model gives no token a
    probability."""
    for name, weight in model.named_parameters():
        values = weight.detach()
        if values.is_meta or not values.numel() or values.dtype not in NUMBERS:
            continue
        # Both extremes of a tensor with NaN are NaN.
        if not all(math.isfinite(value) for value in values.aminmax()):
            raise UnusableModel(
                f"model {path}: {name} holds NaN or infinite numbers: copy the files again, or "
                "name an earlier checkpoint"
            )


def why_not(path: str, error: BaseException, what: str = "model") -> str:
    """Say why the model at `path` does not load, given a library's `error`."""
    folder = Path(path)
    if not folder.exists():
        looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
        where = "no such folder" if looks_local else "neither a folder here nor on the hub"
        if not looks_local and "connect" in str(error).lower():
            where = (
                "no folder here, and the hub cannot be reached from this host to look for it: "
                "check the name and the network, then headrace resume"
            )
        return f"{what} {path}: {where}; give a folder in Hugging Face layout, or run:RUN"
    if not (folder / "config.json").exists():
        return f"{what} {path}: the folder has no config.json, so it is not a Hugging Face model"
    if not list(folder.glob("*.safetensors")):
        return (
            f"{what} {path}: the folder has no .safetensors file; weights in other formats can "
            "hold code and are not read: convert them with save_pretrained"
        )
    if "trust_remote_code" in str(error):
        return (
            f"{what} {path} ships Python code of its own; set model.trust_remote_code if you have "
            "read it and trust it"
        )
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{what} {path} does not load: {type(error).__name__}: {printable(message[:300])}"
