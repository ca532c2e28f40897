"""Write a model's description, and copy its weights to the host, under the names of model
folders."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from learner.errors import UnusableModel
from learner.model.loading.kept_files import beside_adapter, is_tokenizer, tokenizer_state
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.spellings import (
    Object,
    changed_config,
    config_for_all,
    section_of,
    tokenizer_config_for_all,
    with_dtype_named,
)
from learner.slices import WHOLE, RankPart, to_host, whole
from services.models.description import TOKENS
from services.models.folder import CONFIG, GENERATION

TOKENIZER = "tokenizer_config.json"
NOT_OF_A_TOKENIZER = ("backend", "is_local", "local_files_only")
"""Keys that describe how this process loaded the tokenizer."""


def save_description(loaded: LoadedModel, folder: Path) -> None:
    """Write all files of a model except its weights into `folder`. Raises as `description` does."""
    _write(description(loaded), folder)


def save_beside_adapter(loaded: LoadedModel, folder: Path) -> None:
    """Write the files that go with an adapter into its `folder`: the tokenizer, and the base's
    licence. Raises as `description` does."""
    _write(beside_adapter(description(loaded)), folder)


def description(loaded: LoadedModel) -> dict[str, bytes]:
    """Return the files of a model except its weights. They are the files that the model was loaded
    from, with the run's changes; new files for a model from scratch.

    The config names the published type, so vLLM's `auto` picks it. Raises OSError, and
    UnusableModel for a config that transformers could read but cannot write.
    """
    files = dict(loaded.files)
    model = loaded.model
    try:
        if loaded.read_tokenizer != tokenizer_state(loaded.tokenizer):
            files = {name: text for name, text in files.items() if not is_tokenizer(name)}
            files |= _new_tokenizer(loaded.tokenizer)
        config = _config(model, _object(files.get(CONFIG)))
        known = config if loaded.files else {}
        generation = _generation(model, _object(files.get(GENERATION)), known)
    except OSError:
        raise
    except Exception as error:
        raise UnusableModel(
            f"the model's config or tokenizer cannot be written: {error}"
        ) from error
    dtype = loaded.publish_name
    config = with_dtype_named(config_for_all(config), dtype)
    config["architectures"] = [type(model).__name__]
    _update(files, CONFIG, config)
    if generation:
        _update(files, GENERATION, generation)
    if TOKENIZER in files:
        _update(files, TOKENIZER, tokenizer_config_for_all(_object(files[TOKENIZER])))
    return files


def _config(model: PreTrainedModel, file: Object) -> Object:
    """Return the config of `model`, with the keys of the file `file` that still hold."""
    trained: Object = model.config.to_dict()
    section = section_of(file, trained.get("model_type", ""))
    if section is None:
        config = json.loads(model.config.to_json_string())
        return {**config, "use_cache": True}
    read: Object = type(model.config).from_dict(section).to_dict()
    return changed_config(section, read, trained)


def _generation(model: PreTrainedModel, file: Object, config: Object) -> Object:
    """Return the generation config of `model`: the file `file`, with the run's tokens. Empty if
    transformers derives the same values from `config`."""
    if model.generation_config is None:
        return file
    named = {key: getattr(model.generation_config, key) for key in TOKENS}
    before = file or config
    changed = {key: value for key, value in named.items() if value != before.get(key)}
    return {**file, **changed} if changed else file


def _new_tokenizer(tokenizer: Any) -> dict[str, bytes]:
    """Return the files of a tokenizer as transformers writes them. The chat template is also put
    where older versions look for it."""
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }
    config = _object(files[TOKENIZER])
    for key in NOT_OF_A_TOKENIZER:
        config.pop(key, None)
    if tokenizer.chat_template:
        config["chat_template"] = tokenizer.chat_template
    _update(files, TOKENIZER, config)
    return files


def _object(text: bytes | None) -> Object:
    parsed: Object = json.loads(text) if text else {}
    return parsed


def _update(files: dict[str, bytes], name: str, wanted: Object) -> None:
    """Make the file `name` hold `wanted`. A file that already holds it stays as it is, byte for
    byte."""
    if _object(files.get(name)) != wanted:
        files[name] = (json.dumps(wanted, indent=2) + "\n").encode()


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)


def weight_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights by their names in `model`. Tied weights appear once."""
    seen: set[int] = set()
    tensors: dict[str, torch.Tensor] = {}
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    named = model.state_dict(keep_vars=True)
    for name, tensor in sorted(named.items(), key=lambda item: item[0] in tied):
        # An empty slice has no address.
        place = id(tensor) if isinstance(tensor, DTensor) else tensor.data_ptr()
        if place in seen and tensor.numel() > 0:
            continue
        seen.add(place)
        tensors[name] = tensor.detach()
    return dict(sorted(tensors.items()))


def on_host(
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype | None = None,
    part: RankPart | None = WHOLE,
    copy: Callable[[torch.Tensor], torch.Tensor] = to_host,
) -> dict[str, torch.Tensor]:
    """Copy `part` of `tensors` to host memory with `copy`, in their own type or in `dtype`.

    Sharded tensors are gathered one by one from all ranks, so no device holds two whole tensors.
    With `part` None this rank contributes its slices and keeps nothing.
    """
    copied, kept = {}, part.of(tensors) if part else set()
    for name, tensor in tensors.items():
        # Converted before it is sent to the other ranks: the type may be smaller.
        every = whole(tensor.to(dtype or tensor.dtype))
        if name in kept:
            copied[name] = copy(every).contiguous()
    return copied


def as_in_a_folder(
    model: PreTrainedModel, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return `tensors` under the names of a model folder, as vLLM's `load_weights` expects them.
    transformers holds all experts of a layer in one tensor, which is split here. Split tensors are
    copies, so `tensors` should be on the host."""
    cut = revert_weight_conversion(model, tensors)
    return {name: tensor.contiguous() for name, tensor in sorted(cut.items())}
