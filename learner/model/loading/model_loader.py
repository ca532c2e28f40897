"""Load the model that a run trains, and its tokenizer, from a folder. `scratch` makes a new one.

Optimizers always work on float32 weights. A run's `dtype` is the type of the forward pass and of
published weights. Code in a model folder runs only if the config allows it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

from learner.distributed import Ranks
from learner.errors import UnusableModel
from learner.model.attention.packed import (
    AttentionInUse,
    attention_in_use,
    use_packed_attention,
)
from learner.model.head.logit_scale import other_logits
from learner.model.loading.folders import (
    ModelSource,
    check_finite,
    check_size,
    check_tied,
    find_source,
    numbers_of,
    unusable,
)
from learner.model.loading.kept_files import (
    TokenizerState,
    kept_files,
    tokenizer_state,
    with_adapter,
)
from learner.model.passes.packing_check import mixes_sequences
from learner.model.placement.slicing import loading_slices
from services.contracts.config.lora import LoRA
from services.contracts.config.model import PretrainedModel
from services.contracts.config.rollout import Sampling
from services.contracts.rows.turn_end import no_end, turn_ends
from services.models.adapter import MERGED, adapted_layers
from services.models.agreement import contradictions, not_used
from services.models.description import TOKENS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class LoadedModel:
    model: PreTrainedModel
    tokenizer: Any
    publish_dtype: torch.dtype
    lora: LoRA | None = None
    """The adapters, with explicit targets, if the run trains adapters."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files of its folder except the weights. Empty for a model from scratch."""
    read_tokenizer: TokenizerState | None = None
    """State of the tokenizer in these files."""
    warnings: list[str] = field(default_factory=list)
    """Contradictions in its files that the user should know."""

    @property
    def publish_name(self) -> str:
        """Name of `publish_dtype` in configs: `float32`, `bfloat16`."""
        return str(self.publish_dtype).removeprefix("torch.")

    @property
    def autocast(self) -> torch.dtype | None:
        """Type of the forward pass, None for float32."""
        return None if self.publish_dtype == torch.float32 else self.publish_dtype

    @property
    def attention(self) -> AttentionInUse:
        return attention_in_use(self.model, self.autocast)

    @property
    def max_length(self) -> int | None:
        """Positions of the model, if its config names them."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)


def load_model(
    path: str,
    config: PretrainedModel,
    device: torch.device | str = "cpu",
    frozen: bool = False,
    sharing: Ranks | None = None,
) -> LoadedModel:
    """Load the model at `path`, a folder or a hub name. A LoRA adapter in the folder is merged into
    its base. Raises UnusableModel.

    `frozen`: the weights will not change, so they are loaded in the type of the passes. `sharing`:
    ranks that each load their rows of the model; the caller must check it (`unfit`) once it is
    sharded.
    """
    options = {"trust_remote_code": config.trust_remote_code}
    source = find_source(path, config.trust_remote_code)
    checked = contradictions(source.model)
    if checked.refused:
        raise UnusableModel(f"model {path}: {'; '.join(checked.refused)}")
    # An adapter is merged into whole weights, in float32.
    merged = source.adapter is not None
    readers = None if merged else sharing
    with unusable(source.weights):
        folder_dtype = AutoConfig.from_pretrained(source.weights, **options).get_text_config().dtype
        dtype = pass_dtype(config.dtype, folder_dtype or torch.float32, device)
        stored = dtype if frozen and not merged else torch.float32
        check_size(path, numbers_of(AutoModelForCausalLM, source, **options), stored, readers)
        with loading_slices(readers):
            model, report = _read(AutoModelForCausalLM, source, stored, **options)
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])[0]
            raise UnusableModel(f"model {path} lacks {missing}, which would be random")
        check_tied(path, model)
        check_finite(path, model)
        if not checked.warnings and (unused := sorted(report["unexpected_keys"])):
            checked.warnings.append(not_used(unused))
        model = _merged(model, source) if merged else model
        tokenizer = AutoTokenizer.from_pretrained(source.folder, **options)
        _check_generation(model)
        files = kept_files(Path(source.weights), config.trust_remote_code)
        if merged:
            files = with_adapter(files, kept_files(Path(source.folder), with_code=False))
    loaded = ready(model, tokenizer, dtype, _place_for(model, device, sharing))
    loaded.files, loaded.read_tokenizer = files, tokenizer_state(tokenizer)
    loaded.warnings = checked.warnings
    if sharing is None and (why := unfit(loaded.model, loaded.autocast)):
        raise UnusableModel(f"model {path}: {why}")
    return loaded


def unfit(model: PreTrainedModel, autocast: torch.dtype | None = None) -> str | None:
    """Return why the learner cannot train `model`, judged by its computations, or None if it can.
    `autocast`: type of the passes, unless the weights already have it."""
    return mixes_sequences(model, autocast) or other_logits(model)


def pass_dtype(config: str, folder_dtype: torch.dtype, device: torch.device | str) -> torch.dtype:
    """Return the type of the forward pass and of published weights, for `model.dtype` of a config.
    `folder_dtype`: the type that the model's folder names."""
    if config != "auto":
        return DTYPES[config]
    # A CPU without bfloat16 instructions takes several times as long with it.
    if torch.device(device).type != "cuda" or folder_dtype == torch.float32:
        return torch.float32
    # float16 becomes bfloat16, because the learner does not scale losses.
    return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float32


def with_dtype(config: PretrainedModel, published: Path) -> PretrainedModel:
    """Return `config` with the type that the run has already published, read from the config.json
    in `published`. Without that file, return `config` unchanged."""
    path = published / "config.json"
    if config.dtype != "auto" or not path.exists():
        return config
    return config.model_copy(update={"dtype": json.loads(path.read_text())["dtype"]})


def load_critic(
    path: str,
    config: PretrainedModel,
    policy: PreTrainedModel,
    device: torch.device | str = "cpu",
    sharing: Ranks | None = None,
    autocast: torch.dtype | None = None,
) -> PreTrainedModel:
    """Load the model at `path` with a value head. The head is 0 unless the folder has one.
    `sharing`: see `load_model`; `autocast`: see `unfit`. Raises UnusableModel, also if the model
    lacks tokens of the policy."""
    options = {"trust_remote_code": config.trust_remote_code, "num_labels": 1}
    source = find_source(path, config.trust_remote_code, what := "the critic's model")
    with unusable(path, what):
        readers = None if source.adapter else sharing
        numbers = numbers_of(AutoModelForSequenceClassification, source, **options)
        check_size(path, numbers, torch.float32, readers)
        with loading_slices(readers):
            kind = AutoModelForSequenceClassification
            model, loading = _read(
                kind, source, torch.float32, ignore_mismatched_sizes=True, **options
            )
        model = model if source.adapter is None else _merged(model, source)
    head = getattr(model, "score", None)
    if not isinstance(head, nn.Linear):
        raise UnusableModel(
            f"the critic's model {path}: {type(model).__name__} has no linear value head that is "
            "called score; start from another architecture"
        )
    unfit = [key for key, *_ in loading["mismatched_keys"]]
    unfit += [key for key in loading["missing_keys"] if not key.startswith("score.")]
    if unfit:
        raise UnusableModel(
            f"the critic's model {path} lacks {unfit[0]}, or has it in another shape; a value head "
            "has one output"
        )
    if loading["missing_keys"]:
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
    known, needed = (m.get_input_embeddings().num_embeddings for m in (model, policy))
    if known < needed:
        raise UnusableModel(
            f"the critic's model {path} knows {known} tokens, the policy's {needed}: a critic "
            "needs the policy's tokenizer"
        )
    _place(model, _place_for(model, device, sharing))
    model.config.architectures = [type(model).__name__]
    use_packed_attention(model)
    if sharing is None and (why := mixes_sequences(model, autocast)):
        raise UnusableModel(f"the critic's model {path}: {why}")
    return model


def end_tokens(loaded: LoadedModel) -> set[int]:
    """Return the ids that end a completion: the tokenizer's, the generation config's, and those
    with which the chat template ends a turn."""
    ends = {loaded.tokenizer.eos_token_id, *turn_ends(loaded.tokenizer).values()}
    return {int(end) for end in (*ends, *_named_ends(loaded)) if end is not None}


def name_ends(loaded: LoadedModel) -> None:
    """Add the tokens with which the chat template ends a turn to the generation config, which is
    published and exported: supervised training teaches them."""
    named = _named_ends(loaded)
    ends = [end for end in turn_ends(loaded.tokenizer).values() if end not in named]
    generation = loaded.model.generation_config
    if generation is not None and ends:
        generation.eos_token_id = [*named, *ends]


def _named_ends(loaded: LoadedModel) -> list[int]:
    """Return the generation config's ids that end a completion."""
    generation = loaded.model.generation_config
    named = generation.eos_token_id if generation is not None else None
    return list(named) if isinstance(named, list | tuple) else [] if named is None else [named]


def endless(loaded: LoadedModel, sampling: Sampling) -> str | None:
    """Return a warning if the model has no end of sequence: then its completions end only at a
    limit."""
    if end_tokens(loaded):
        return None
    return no_end(sampling.stop_token_ids)


def _read(kind: Any, source: ModelSource, dtype: torch.dtype, **options: Any) -> Any:
    """Return the model of a `kind` of transformers, and transformers' report on its weights."""
    return kind.from_pretrained(
        source.weights, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
    )


def _merged(model: PreTrainedModel, source: ModelSource) -> PreTrainedModel:
    from peft import LoraConfig, PeftModel

    assert source.adapter is not None
    # Only the keys that say how to merge. Other keys initialise, train, or name files and modules.
    known = {key: source.adapter[key] for key in MERGED if source.adapter.get(key) is not None}
    # A regular expression can take forever. The adapter's own tensors give the same targets.
    if isinstance(known.get("target_modules"), str):
        known["target_modules"] = adapted_layers(Path(source.folder))
        known.pop("exclude_modules", None)
    adapted = PeftModel.from_pretrained(model, source.folder, config=LoraConfig(**known))
    merged: PreTrainedModel = adapted.merge_and_unload()
    # peft has frozen the adapted weights.
    return merged.requires_grad_(True)


def _check_generation(model: PreTrainedModel) -> None:
    """If transformers would refuse to write the generation config, keep only the tokens that end a
    completion."""
    generation = model.generation_config
    if generation is None:
        return
    try:
        generation.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig(
            **{key: getattr(generation, key) for key in TOKENS}
        )


def ready(
    model: PreTrainedModel, tokenizer: Any, dtype: torch.dtype, device: torch.device | str
) -> LoadedModel:
    """Move `model` to `device`, and have its attention compute packed rows. `dtype`:
    type of the passes and of published weights."""
    _place(model, device)
    use_packed_attention(model)
    return LoadedModel(model, tokenizer, dtype)


def _place_for(
    model: PreTrainedModel, device: torch.device | str, sharing: Ranks | None
) -> torch.device | str:
    """Return the device on which `model` waits until it is sharded. A whole model waits on the
    host, and FSDP moves one block at a time."""
    whole = not isinstance(next(model.parameters()), DTensor)
    return "cpu" if sharing is not None and whole else device


def _place(model: PreTrainedModel, device: torch.device | str) -> None:
    model.to(device)
    # Weights that were read from a file have the alignment of the file, and CPU products round by
    # the alignment of their factors: without a copy a resumed run would not repeat bit for bit.
    for parameter in model.parameters():
        aligned = parameter.detach().clone(memory_format=torch.contiguous_format)
        if isinstance(aligned, DTensor):
            # Setting its `data` has no effect.
            torch.utils.swap_tensors(parameter, nn.Parameter(aligned, parameter.requires_grad))
        else:
            parameter.data = aligned
    model.config.use_cache = False
