"""How the stand-in behaves, and what it knows."""

from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from rollout.vllm_plugin.weight_file import Tensors
from services.contracts.canary import Canary


@dataclass
class Script:
    """How the stand-in behaves."""

    vocabulary: int = 32
    tokens_per_second: float = 1000.0
    """Speed of each sequence, unless paused."""
    replies: list[list[int]] = field(default_factory=list)
    """Completions to give, in turn; empty: random ones of random length."""
    fail_start: str = ""
    """Log this line and exit with code 1."""
    hang_after: int | None = None
    """Stop sampling after this many tokens; go on answering everything else."""
    hang_until: str = ""
    """A file that ends this once it exists."""
    update_seconds: float = 0.0
    """How long a load of weights takes."""
    sequences: int = 256
    """Run at once, as far as the server says, unless `--max-num-seqs` names another number."""
    cache_tokens: int | None = None
    """Tokens of the cache, as the server reports them."""
    ignored_updates: list[int] = field(default_factory=list)
    """Updates, counted from 0, after which it serves the weights of before."""
    goes_back: bool = False
    """After a sleep it serves the weights of before the last update."""
    keeps_prefixes: bool = False
    """Scores a prompt as it did first, whatever was loaded since."""
    score_error: float = 0.0
    """Nats by which its scores of prompts are wrong."""
    requests: str = ""
    """A file to which prompt and seed of each request are appended, one JSON object a line."""


@dataclass
class State:
    """The state of the server."""

    script: Script
    context: int
    model: Path
    most: int = 0
    """`--max-num-seqs`, if given."""
    layers: int = 0
    """Layers whose expert routing is returned."""
    version: str = "default"
    tokens: int = 0
    answered: int = 0
    unfinished: int = 0
    """Samples that were begun and have not ended."""
    loaded: Tensors | None = None
    canary: Canary | None = None
    """Canary of the served weights."""
    before: Canary | None = None
    """Canary of the weights before the last update."""
    updates: int = 0
    prefixes: dict[tuple[int, ...], bytes] = field(default_factory=dict)
    """Prompts that were scored, and how."""
    updating: bool = False
    may_sleep: bool = False
    """`--enable-sleep-mode`: only with it can the server free its memory."""
    asleep: bool = False
    """Whether its weights are on the host, and its cache is gone."""
    admitting: bool = True
    """Whether requests that come are begun."""
    running: bool = True
    """Whether tokens are sampled."""
    requests: dict[str, "Asked"] = field(default_factory=dict)
    """Those begun and not answered, by id."""
    tokenizer: Tokenizer | None = None
    """The model's tokenizer, if it has one."""
    salts: list[tuple[str, str]] = field(default_factory=list)
    """(cache salt, version that was live when it was begun) of every request."""


@dataclass
class Asked:
    """One request."""

    aborted: bool = False
