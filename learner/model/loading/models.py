"""The model a run trains and its tokenizer, loaded from a folder; `scratch` makes one from nothing.

Optimizers always work on float32 weights; a run's `dtype` is the type of the forward pass and of
published weights. Code shipped with a model runs only where the config allows it.
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
    Source,
    check_size,
    check_tied,
    find_source,
    numbers_of,
    unusable,
)
from learner.model.loading.own_files import (
    TokenizerState,
    own_files,
    tokenizer_state,
    with_adapter,
)
from learner.model.moe.experts import use_pass_type_experts
from learner.model.passes.packing_check import mixes_sequences
from learner.model.placement.slicing import loading_slices
from services.contracts.config.lora import LoRA
from services.contracts.config.model import PretrainedModel
from services.contracts.config.rollout import Sampling
from services.contracts.rows.turn_end import turn_ends
from services.models.adapter import MERGED, adapted_layers
from services.models.agreement import contradictions, not_used
from services.models.description import TOKENS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class LoadedModel:
    """A model ready to train on one device."""

    model: PreTrainedModel
    tokenizer: Any
    publish_dtype: torch.dtype
    lora: LoRA | None = None
    """The adapters, with explicit targets, if they are what is trained."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files of its folder but the weights; empty for a model from scratch."""
    read_tokenizer: TokenizerState | None = None
    """The state of `tokenizer` as these files have it."""
    warnings: list[str] = field(default_factory=list)
    """Contradictions in its files that a user should know."""

    @property
    def publish_name(self) -> str:
        """`publish_dtype` by its name in configs: `float32`, `bfloat16`."""
        return str(self.publish_dtype).removeprefix("torch.")

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of the forward pass, if it is not float32."""
        return None if self.publish_dtype == torch.float32 else self.publish_dtype

    @property
    def attention(self) -> AttentionInUse:
        """How its attention over packed rows is computed."""
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
    """The model at `path`, a folder or a hub name; of a folder with a LoRA adapter, its base with
    the adapter merged in. Raises UnusableModel.

    `frozen`: its weights will not change, and are loaded in the type of the passes. `sharing`:
    ranks that load their rows of it each; the caller has it checked (`unfit`) once it is sharded.
    """
    options = {"trust_remote_code": config.trust_remote_code}
    source = find_source(path, config.trust_remote_code)
    said = contradictions(source.model)
    if said.refused:
        raise UnusableModel(f"model {path}: {'; '.join(said.refused)}")
    # An adapter is merged into whole weights, in float32.
    merged = source.adapter is not None
    readers = None if merged else sharing
    with unusable(source.weights):
        own = AutoConfig.from_pretrained(source.weights, **options).get_text_config().dtype
        dtype = pass_dtype(config.dtype, own or torch.float32, device)
        stored = dtype if frozen and not merged else torch.float32
        check_size(path, numbers_of(AutoModelForCausalLM, source, **options), stored, readers)
        with loading_slices(readers):
            model, report = AutoModelForCausalLM.from_pretrained(
                source.weights,
                dtype=stored,
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])[0]
            raise UnusableModel(f"model {path} lacks {missing}, which would be random")
        check_tied(path, model)
        if not said.warnings and (unused := sorted(report["unexpected_keys"])):
            said.warnings.append(not_used(unused))
        model = _merged(model, source) if merged else model
        tokenizer = AutoTokenizer.from_pretrained(source.folder, **options)
        _check_generation(model)
        files = own_files(Path(source.weights), config.trust_remote_code)
        if merged:
            files = with_adapter(files, own_files(Path(source.folder), with_code=False))
    loaded = ready(model, tokenizer, dtype, _place_for(model, device, sharing))
    loaded.files, loaded.read_tokenizer = files, tokenizer_state(tokenizer)
    loaded.warnings = said.warnings
    if sharing is None and (why := unfit(loaded.model, loaded.autocast)):
        raise UnusableModel(f"model {path}: {why}")
    return loaded


def unfit(model: PreTrainedModel, autocast: torch.dtype | None = None) -> str | None:
    """Why the learner cannot train `model`, by what it computes; None where it can. `autocast`: of
    its passes, where nothing else gives them their type."""
    return mixes_sequences(model, autocast) or other_logits(model)


def pass_dtype(config: str, own: torch.dtype, device: torch.device | str) -> torch.dtype:
    """Type of the forward pass and of published weights for `model.dtype` of a config. `own`: the
    type that the model's folder names."""
    if config != "auto":
        return DTYPES[config]
    # A CPU without bfloat16 instructions takes several times as long with it.
    if torch.device(device).type != "cuda" or own == torch.float32:
        return torch.float32
    # float16 becomes bfloat16: the learner does not scale losses.
    return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float32


def with_dtype(config: PretrainedModel, published: Path) -> PretrainedModel:
    """`config` with the type that the run has published before, by the config.json in `published`,
    where it has; else as it is."""
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
    """The model at `path` with a value head, which is 0 unless the folder holds one. `sharing` is
    as in `load_model`, `autocast` as in `unfit`. Raises UnusableModel, also where it lacks tokens
    of the policy."""
    options = {"trust_remote_code": config.trust_remote_code, "num_labels": 1}
    source = find_source(path, config.trust_remote_code, what := "the critic's model")
    with unusable(path, what):
        readers = None if source.adapter else sharing
        numbers = numbers_of(AutoModelForSequenceClassification, source, **options)
        check_size(path, numbers, torch.float32, readers)
        with loading_slices(readers):
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                source.weights,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
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
    use_pass_type_experts(model)
    if sharing is None and (why := mixes_sequences(model, autocast)):
        raise UnusableModel(f"the critic's model {path}: {why}")
    return model


def end_tokens(loaded: LoadedModel) -> set[int]:
    """Ids that end a completion: the tokenizer's, the generation config's, and those by which the
    chat template ends a turn."""
    ends = {loaded.tokenizer.eos_token_id, *turn_ends(loaded.tokenizer).values()}
    return {int(end) for end in (*ends, *_named_ends(loaded)) if end is not None}


def name_ends(loaded: LoadedModel) -> None:
    """Add the tokens by which the chat template ends a turn to the generation config, which is
    published and exported: supervised training teaches them."""
    named = _named_ends(loaded)
    ends = [end for end in turn_ends(loaded.tokenizer).values() if end not in named]
    generation = loaded.model.generation_config
    if generation is not None and ends:
        generation.eos_token_id = [*named, *ends]


def _named_ends(loaded: LoadedModel) -> list[int]:
    """The ids of the generation config that end a completion."""
    generation = loaded.model.generation_config
    named = generation.eos_token_id if generation is not None else None
    return list(named) if isinstance(named, list | tuple) else [] if named is None else [named]


def endless(loaded: LoadedModel, sampling: Sampling) -> str | None:
    """A warning where the model has no end of sequence, so that it ends no completion."""
    if end_tokens(loaded):
        return None
    ends = "sampling.max_tokens"
    if sampling.stop_token_ids:
        ends = "sampling.stop_token_ids or sampling.max_tokens"
    return (
        "neither tokenizer nor generation config of the model name an end of sequence: only "
        f"{ends} end completions; set eos_token_id in the model's generation_config.json"
    )


def _merged(model: PreTrainedModel, source: Source) -> PreTrainedModel:
    """`model` with the adapter of `source` added to its weights."""
    from peft import LoraConfig, PeftModel

    assert source.adapter is not None
    # Only what says how to merge: the other keys initialise, train, or name files and modules.
    known = {key: source.adapter[key] for key in MERGED if source.adapter.get(key) is not None}
    # A pattern can take for ever; the adapter's own tensors say the same.
    if isinstance(known.get("target_modules"), str):
        known["target_modules"] = adapted_layers(Path(source.folder))
        known.pop("exclude_modules", None)
    adapted = PeftModel.from_pretrained(model, source.folder, config=LoraConfig(**known))
    merged: PreTrainedModel = adapted.merge_and_unload()
    # peft has frozen what it put the adapter beside.
    return merged.requires_grad_(True)


def _check_generation(model: PreTrainedModel) -> None:
    """Keep of a generation config that transformers would refuse to write only what ends a
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
    """`model` on `device`, with attention and experts that compute packed rows. `dtype`: of its
    passes and of what is published."""
    _place(model, device)
    use_packed_attention(model)
    use_pass_type_experts(model)
    return LoadedModel(model, tokenizer, dtype)


def _place_for(
    model: PreTrainedModel, device: torch.device | str, sharing: Ranks | None
) -> torch.device | str:
    """Where `model` waits to be sharded between ranks, if it is to be: whole ones on the host, from
    which FSDP takes one block at a time."""
    whole = not isinstance(next(model.parameters()), DTensor)
    return "cpu" if sharing is not None and whole else device


def _place(model: PreTrainedModel, device: torch.device | str) -> None:
    model.to(device)
    # Weights that were read from a file lie where its header leaves them, and a CPU rounds products
    # by where their factors lie: without a copy a resumed run would not repeat bit for bit.
    for parameter in model.parameters():
        own = parameter.detach().clone(memory_format=torch.contiguous_format)
        if isinstance(own, DTensor):
            # Setting its `data` changes nothing.
            torch.utils.swap_tensors(parameter, nn.Parameter(own, parameter.requires_grad))
        else:
            parameter.data = own
    model.config.use_cache = False
