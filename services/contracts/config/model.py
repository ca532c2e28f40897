"""The model that a run trains: an existing one, or one with random weights."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from services.contracts.config.base import Section, refuse_if
from services.contracts.config.lora import LoRA

DType = Literal["auto", "float32", "bfloat16"]


def _no_float16(dtype: Any) -> Any:
    if dtype in ("float16", "fp16", "half"):
        raise ValueError(
            f"{dtype} has too small a range: without loss scaling, which the learner does not do, "
            "small gradients become 0. Set bfloat16, which has the range of float32"
        )
    return dtype


TrainedDType = Annotated[DType, BeforeValidator(_no_float16)]


class PretrainedModel(Section):
    """A model folder in Hugging Face layout, a hub name, or an earlier run's last checkpoint."""

    source: Literal["pretrained"] = "pretrained"
    path: str = Field(min_length=1)
    """A folder, a hub name (`org/name`), or `run:RUN` for the checkpoint of another run.
    `run:RUN@STEP` selects the checkpoint of a step."""
    dtype: TrainedDType = "auto"
    """Type of the forward pass and of published weights; optimizers work on float32. auto: on a GPU
    the model's own (bfloat16 for float16), on a CPU float32; a run that resumes keeps its type."""
    trust_remote_code: bool = False
    """Run Python code that the model's folder ships. Read that code first. Refused unless the
    operator allows it (HEADRACE_TRUST_REMOTE_CODE)."""
    lora: LoRA | None = None
    """Train adapters instead of the model's own weights; default: train all weights."""


class CharacterTokenizer(Section):
    """One token per character of `alphabet`, plus beginning, end and padding."""

    type: Literal["character"] = "character"
    alphabet: str = Field("0123456789+-*/=() ", min_length=1)
    """All characters that prompts and answers may have."""

    @model_validator(mode="after")
    def _distinct(self) -> "CharacterTokenizer":
        if len(set(self.alphabet)) != len(self.alphabet):
            raise ValueError("alphabet names a character twice")
        return self


class BPETokenizer(Section):
    """Byte-pair encoding over bytes, trained on the run's rows, with a chat template as ChatML that
    also writes tools and their calls."""

    type: Literal["bpe"]
    vocabulary: int = Field(4096, ge=512, le=1 << 20)
    """Tokens: bytes, merges, and four special ones."""


Tokenizer = Annotated[CharacterTokenizer | BPETokenizer, Field(discriminator="type")]


class ScratchModel(Section):
    """A Llama with random weights and its own small tokenizer; with experts, a Qwen3-MoE."""

    source: Literal["scratch"]
    hidden_size: int = Field(128, ge=16, le=1 << 16)
    """Width of the residual stream."""
    layers: int = Field(4, ge=1, le=1 << 10)
    """Transformer blocks."""
    heads: int = Field(4, ge=1, le=1 << 10)
    """Attention heads; divides `hidden_size`."""
    intermediate_size: int = Field(512, ge=16, le=1 << 20)
    """Width of the feed-forward layers, or of each expert."""
    experts: int = Field(0, ge=0, le=1 << 12)
    """Experts in each layer; 0: a dense model."""
    experts_per_token: int = Field(2, ge=1)
    """Experts of each token, if there are any."""
    max_length: int = Field(256, ge=16, le=1 << 24)
    """The model's positions, in tokens."""
    tokenizer: Tokenizer = CharacterTokenizer()
    """How text becomes tokens."""
    dtype: TrainedDType = "auto"
    """Type of the forward pass; optimizers work on float32. auto: bfloat16 on a GPU, float32 on a
    CPU."""

    @model_validator(mode="after")
    def _sizes(self) -> "ScratchModel":
        refuse_if(
            0 < self.experts <= self.experts_per_token,
            f"experts {self.experts} leaves nothing to choose with experts_per_token "
            f"{self.experts_per_token}: raise experts, or set it to 0 for a Llama",
        )
        width, rest = divmod(self.hidden_size, self.heads)
        refuse_if(
            rest > 0, f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}"
        )
        refuse_if(
            width % 2 == 1, "hidden_size / heads must be even: rotary embeddings work on pairs"
        )
        return self


Model = Annotated[PretrainedModel | ScratchModel, Field(discriminator="source")]


def lora_of(model: PretrainedModel | ScratchModel) -> LoRA | None:
    """The adapters that a run trains, if it does."""
    return model.lora if isinstance(model, PretrainedModel) else None
