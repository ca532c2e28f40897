"""Options of a rollout worker's vLLM server."""

import json
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from services.contracts.config.base import Section

RECORD_ROUTING = "enable-return-routed-experts"
"""vLLM's option to return the experts that each token went to."""
CACHE_BYTES = "kv-cache-memory-bytes"
"""vLLM's option for the size of its cache. With it vLLM does not measure what others leave free."""
SPECULATION = frozenset({"speculative-config", "spec-method", "spec-model", "spec-tokens"})
RESERVED = frozenset(
    {
        "model", "served-model-name", "host", "port", "uds", "enable-scale-out", "load-format",
        "weight-transfer-config", "logprobs-mode", "disable-log-stats", "api-server-count",
        "max-model-len", "max-num-seqs", "dtype", "tensor-parallel-size", "gpu-memory-utilization",
        "max-logprobs", "return-sampling-mask", "scheduling-policy", "logits-processors",
        "quantization",
        "api-key", "tokens-only", "ssl-keyfile", "ssl-certfile", "root-path", "config",
        "middleware", *SPECULATION,
        "enable-sleep-mode", "sleep-mode-backend",
        "enable-lora", "lora-modules", "lora-target-modules", "max-lora-rank", "max-loras",
        RECORD_ROUTING,
    }
)  # fmt: skip

CHAT_TEMPLATE = frozenset(
    {"chat-template", "chat-template-content-format", "default-chat-template-kwargs"}
)

SWITCHES = frozenset(
    {
        "async-scheduling", "disable-cascade-attn", "disable-custom-all-reduce",
        "disable-sliding-window", "enable-auto-tool-choice", "enable-chunked-prefill",
        "enable-expert-parallel", "enable-prefix-caching", "enforce-eager",
    }
)  # fmt: skip
"""Options of vLLM (0.32) that take no value. vLLM would ignore what follows them without a word."""

VALUES = frozenset(
    {
        "attention-backend", "block-size", "cpu-offload-gb", "kv-cache-dtype",
        CACHE_BYTES, "long-prefill-token-threshold", "mamba-block-size",
        "mamba-cache-dtype", "mamba-ssm-cache-dtype", "max-cudagraph-capture-size",
        "max-num-batched-tokens", "moe-backend", "num-gpu-blocks-override", "optimization-level",
        "performance-mode", "prefix-caching-hash-algo", "reasoning-parser", "seed",
        "stream-interval", "tool-call-parser",
    }
)  # fmt: skip
"""Options of vLLM that take one value."""

HARMLESS = SWITCHES | VALUES
"""Options that any run may set: they neither run code nor read files."""

OPTION = re.compile("-{0,2}[A-Za-z0-9][A-Za-z0-9._-]*")


TOOL_PARSER_OPTIONS = (
    "rollout.vllm.extra {enable-auto-tool-choice: true, tool-call-parser: hermes}, or another of "
    "vLLM's parsers"
)
"""The options that a run needs if its policy calls tools, for messages."""


def spelled(option: str) -> str:
    """An option's name as vLLM's command line has it: `max_model_len` is `max-model-len`."""
    return option.lstrip("-").replace("_", "-")


class VLLM(Section):
    """Options of a worker's vLLM server."""

    max_model_len: int | None = Field(None, ge=16)
    """Tokens of prompt and completion together, at most; default: the model's own limit."""
    max_num_seqs: int | None = Field(None, ge=1)
    """Completions generated at once, at most; default: as many as fit into vLLM's cache, at the
    length that the run's completions have, and at most what vLLM chooses for its device."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights for sampling; auto: as published, or bfloat16 with `quantization`."""
    quantization: Literal["fp8_per_channel"] | None = None
    """Weights of linear layers in 8 bits for sampling, with a scale for each output channel, and
    activations with one for each token. vLLM makes them of the bfloat16 weights of each version.
    Half the memory and more speed, where the GPU multiplies such numbers, for a larger difference
    between sampler and learner (`mismatch/kl`), which `algorithm.correction` is for."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs that share one server."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of a GPU's memory for the server; default: 0.9, or less if it shares the GPU
    (docs/operate.md)."""
    sleeps: bool = False
    """Whether vLLM sleeps while the learner trains: they take turns on a GPU that is too small for
    both. The gateway then sets this key and `gpu_memory_utilization` (docs/operate.md)."""
    ngram_tokens: int = Field(0, ge=0, le=16)
    """Tokens that vLLM guesses ahead, from where the last ones came before in the prompt and the
    completion (n-gram speculative decoding); 0 is off. The policy checks all of them in one pass,
    so that completions and log-probabilities have its distribution. Faster where answers repeat
    text and few completions run at once. On GPUs only."""
    extra: dict[str, Any] = {}
    """Other options of the vLLM server by name, e.g. {"enable-prefix-caching": false}. Switches are
    true or false. Options that could run code or read files are refused unless the operator allows
    them (HEADRACE_TRUST_REMOTE_CODE)."""
    startup_seconds: float = Field(600, gt=0)
    """Seconds that the server may take to start."""

    @property
    def parses_tools(self) -> bool:
        """Whether vLLM reads tool calls in answers."""
        return self._sets("tool-call-parser")

    @property
    def parses_reasoning(self) -> bool:
        """Whether vLLM reads reasoning in answers."""
        return self._sets("reasoning-parser")

    @property
    def several_processes(self) -> bool:
        """Whether more than one process of the server holds weights."""
        others = ("pipeline-parallel-size", "data-parallel-size")
        sizes = [value for name, value in self.extra.items() if spelled(name) in others]
        return self.tensor_parallel_size > 1 or any(str(size) != "1" for size in sizes)

    def _sets(self, option: str) -> bool:
        return any(spelled(name) == option and value for name, value in self.extra.items())

    @property
    def computes_in(self) -> Literal["auto", "float32", "bfloat16"]:
        """The `dtype` that vLLM gets: bfloat16 with `quantization`, because vLLM quantises half
        types only."""
        return "bfloat16" if self.quantization else self.dtype

    @model_validator(mode="after")
    def _quantised_from_half(self) -> "VLLM":
        if self.quantization and self.dtype == "float32":
            raise ValueError(
                f"vLLM makes {self.quantization} of bfloat16 weights: leave dtype out, or leave "
                "quantization out"
            )
        return self

    @model_validator(mode="after")
    def _sleeps_on_one_gpu(self) -> "VLLM":
        if self.sleeps and self.tensor_parallel_size > 1:
            raise ValueError(
                "learner and vLLM take turns on one GPU (sleeps), and tensor_parallel_size is "
                f"{self.tensor_parallel_size}: set it to 1, or leave sleeps out"
            )
        return self

    @field_validator("extra")
    @classmethod
    def _not_ours(cls, extra: dict[str, Any]) -> dict[str, Any]:
        if SPECULATION & {spelled(name) for name in extra}:
            raise ValueError(
                "extra may not set speculative decoding: a draft model would keep its weights "
                "while the policy changes, and fewer and fewer of its tokens would be accepted. "
                "rollout.vllm.ngram_tokens guesses tokens without a model"
            )
        if taken := sorted(RESERVED & {spelled(name) for name in extra}):
            raise ValueError(
                f"extra may not set {', '.join(taken)}: Headrace sets it itself (max_model_len, "
                "max_num_seqs, dtype, quantization, tensor_parallel_size and "
                "gpu_memory_utilization are keys of "
                "rollout.vllm, expert routing is recorded by algorithm.router.replay)"
            )
        if CHAT_TEMPLATE & {spelled(name) for name in extra}:
            raise ValueError(
                "extra may not set the chat template: Headrace renders the prompts, by "
                "data.chat_template and data.chat_template_kwargs"
            )
        if refused := [why for item in extra.items() if (why := _misread(*item))]:
            raise ValueError("; ".join(refused))
        return extra


def _misread(name: str, value: Any) -> str | None:
    """Say why vLLM's parser would take an option or its value for something else."""
    if not OPTION.fullmatch(name):
        return f"extra: {json.dumps(name)} is no name of an option: leave it out"
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, str) and text.startswith("-") for text in texts):
        return f"extra: the value of {name} begins with -, as an option does"
    if value is None:
        return None
    if spelled(name) in SWITCHES and not isinstance(value, bool):
        return f"extra: {name} is a switch: write true or false (got {json.dumps(value)})"
    if spelled(name) in VALUES and isinstance(value, bool | list | dict):
        return f"extra: {name} takes one text or number (got {json.dumps(value)})"
    return None
