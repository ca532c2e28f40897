"""A reward model: conversations in, raw scores out. It runs in the process of `reward.models`.

There are two kinds: sequence classification (one logit a label), and models with their own
`get_score` (InternLM2's form), whose Python code must be trusted.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from reward.errors import brief
from reward.models.wire import Message, ModelOptions
from services.contracts.rows.rendering import chat_text
from services.models import UnusableFolder, check_folder

BATCH_TOKENS, BATCH_TOKENS_CPU = 16_384, 4_096
"""Tokens of a forward pass. On a CPU a larger pass is slower, because activations leave its caches
(3 M parameters, 2 cores: 69 conversations a second, against 47 with 16,384)."""

Scores = list[float] | str
"""One score a label, or the reason why the model has no scores."""


class Encoded(NamedTuple):
    """A conversation as the model takes it."""

    ids: list[int]
    types: list[int] | None
    """0 for the question and 1 for the answer, for models that were trained on such pairs."""
    truncated: bool
    messages: list[Message]


class Scorer(Protocol):
    labels: int
    batch_tokens: int
    """The limit of one forward pass."""

    def encode(self, conversations: list[list[Message]]) -> list[Encoded]:
        """Return the tokens, cut at the front to the model's longest input."""

    def score(self, batch: list[Encoded]) -> list[Scores]:
        """Return one result for each conversation."""


class LoadError(Exception):
    """The model cannot be used. The message says why, and the way out."""


def load(options: ModelOptions) -> Scorer:
    """Load the model of `options`. Raises LoadError, and the errors of transformers."""
    if Path(options.path).is_dir():
        _check(Path(options.path))
    config = AutoConfig.from_pretrained(options.path, trust_remote_code=options.trust_remote_code)
    own_code = getattr(config, "auto_map", None) or {}
    if "AutoModel" in own_code and "AutoModelForSequenceClassification" not in own_code:
        if not options.trust_remote_code:
            raise LoadError(
                f"{options.path} brings Python code of its own; read it, and start the service "
                "with --reward-model-code if you trust it"
            )
        return OwnScorer(options)
    return Classifier(options)


def _check(folder: Path) -> None:
    try:
        model_folder = check_folder(folder)
    except UnusableFolder as error:
        raise LoadError(str(error)) from error
    if model_folder.adapter is not None:
        raise LoadError(f"{folder} is an adapter: merge it into its base, and name the whole model")


def scores_of(scorer: Scorer, batch: list[Encoded]) -> list[Scores]:
    """Return one result for each conversation. A conversation that breaks the model costs no other
    conversation its scores.

    Raises AcceleratorError; after it, only another process can use that GPU.
    """
    try:
        return scorer.score(batch)
    except torch.AcceleratorError:
        raise
    except Exception as error:
        if len(batch) == 1:
            return [f"the model breaks on it: {brief(error)}"]
    return [scores for conversation in batch for scores in scores_of(scorer, [conversation])]


class Classifier:
    def __init__(self, options: ModelOptions) -> None:
        self.device, dtype = _placement(options)
        self.batch_tokens = _batch_tokens(options, self.device)
        self.tokenizer = AutoTokenizer.from_pretrained(
            options.path, trust_remote_code=options.trust_remote_code
        )
        # Truncate at the front: the answer stands at the end, and is what the model scores.
        self.tokenizer.truncation_side = "left"
        model, report = AutoModelForSequenceClassification.from_pretrained(
            options.path,
            dtype=dtype,
            trust_remote_code=options.trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:5])
            raise LoadError(
                f"{options.path} is no reward model: its files have no weights for {missing}, "
                "which would be random"
            )
        self.model: Any = model.to(self.device).eval()
        self.model.config.use_cache = False
        self.labels = int(self.model.config.num_labels)
        self.max_tokens = _max_tokens(self.model.config, options)

    def encode(self, conversations: list[list[Message]]) -> list[Encoded]:
        """Implements `Scorer.encode`. Without a chat template, a conversation is a pair of texts:
        the question, and the last message as its answer. Raises ValueError for a template that
        leaves out the question."""
        if getattr(self.tokenizer, "chat_template", None):
            texts = [
                chat_text(chat, self.tokenizer, answer_follows=False) for chat in conversations
            ]
            # The template has written the special tokens.
            made = self.tokenizer(texts, add_special_tokens=False)
        else:
            made = self.tokenizer(
                [
                    "\n".join(str(message["content"]) for message in chat[:-1])
                    for chat in conversations
                ],
                [str(chat[-1]["content"]) for chat in conversations],
                truncation="longest_first",
                max_length=self.max_tokens,
            )
        types = made.get("token_type_ids") or [None] * len(conversations)
        return [
            Encoded(
                ids[-self.max_tokens :],
                kinds[-self.max_tokens :] if kinds is not None else None,
                len(ids) > self.max_tokens,
                messages,
            )
            for ids, kinds, messages in zip(made["input_ids"], types, conversations, strict=True)
        ]

    def score(self, batch: list[Encoded]) -> list[Scores]:
        """Implements `Scorer.score`. A batch that does not fit into memory is halved."""
        try:
            return [_finite(row) for row in self._forward(batch)]
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                return [f"{len(batch[0].ids)} tokens do not fit into the GPU's memory"]
        torch.cuda.empty_cache()
        half = len(batch) // 2
        return self.score(batch[:half]) + self.score(batch[half:])

    @torch.inference_mode()
    def _forward(self, batch: list[Encoded]) -> list[list[float]]:
        pad = self._pad(batch)
        longest = max(len(conversation.ids) for conversation in batch)
        gaps = [longest - len(conversation.ids) for conversation in batch]
        inputs = {
            "input_ids": [
                conversation.ids + [pad] * gap
                for conversation, gap in zip(batch, gaps, strict=True)
            ],
            "attention_mask": [
                [1] * len(conversation.ids) + [0] * gap
                for conversation, gap in zip(batch, gaps, strict=True)
            ],
        }
        if all(conversation.types is not None for conversation in batch):
            inputs["token_type_ids"] = [
                (conversation.types or []) + [0] * gap
                for conversation, gap in zip(batch, gaps, strict=True)
            ]
        tensors = {name: torch.tensor(rows, device=self.device) for name, rows in inputs.items()}
        rows: list[list[float]] = self.model(**tensors).logits.float().tolist()
        return rows

    def _pad(self, batch: list[Encoded]) -> int:
        """Choose the padding token, set it in the model's config and return it: the tokenizer's
        own, or, if it lacks one or the batch contains it, a token that occurs nowhere in the batch.

        Models score the last token before the padding. If a conversation ended with the padding
        token (often the end of a message), its score would be read one token early.
        """
        pad = self.tokenizer.pad_token_id
        used = {token for conversation in batch for token in conversation.ids}
        if pad is None or pad in used:
            pad = next(token for token in range(len(used) + 1) if token not in used)
        self.model.config.get_text_config().pad_token_id = pad
        return int(pad)


class OwnScorer:
    """A model with `get_score(tokenizer, messages)`, or with `get_scores` for several
    conversations."""

    labels = 1

    def __init__(self, options: ModelOptions) -> None:
        device, dtype = _placement(options)
        self.batch_tokens = _batch_tokens(options, device)
        self.tokenizer = AutoTokenizer.from_pretrained(options.path, trust_remote_code=True)
        model = AutoModel.from_pretrained(
            options.path, dtype=dtype, trust_remote_code=True, use_safetensors=True
        )
        if not hasattr(model, "get_score"):
            raise LoadError(
                f"{options.path} has neither a sequence classification head nor get_score"
            )
        self.model: Any = model.to(device).eval()

    def encode(self, conversations: list[list[Message]]) -> list[Encoded]:
        """Implements `Scorer.encode`. The model reads messages itself. The batching uses an
        estimate of four characters a token."""
        return [
            Encoded([0] * (1 + sum(len(str(m["content"])) for m in chat) // 4), None, False, chat)
            for chat in conversations
        ]

    @torch.inference_mode()
    def score(self, batch: list[Encoded]) -> list[Scores]:
        conversations = [conversation.messages for conversation in batch]
        if hasattr(self.model, "get_scores"):
            scores = self.model.get_scores(self.tokenizer, conversations)
        else:
            scores = [
                self.model.get_score(self.tokenizer, conversation) for conversation in conversations
            ]
        return [_finite([float(score)]) for score in scores]


def _placement(options: ModelOptions) -> tuple[str, Any]:
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    name = options.dtype
    if name == "auto":
        name = "float32" if device == "cpu" else "bfloat16"
    return device, getattr(torch, name)


def _batch_tokens(options: ModelOptions, device: str) -> int:
    return options.batch_tokens or (BATCH_TOKENS_CPU if device == "cpu" else BATCH_TOKENS)


def _max_tokens(config: Any, options: ModelOptions) -> int:
    known = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min(options.max_tokens, known) if known else options.max_tokens


def _finite(row: list[float]) -> Scores:
    return row if all(map(math.isfinite, row)) else f"the model's scores are not finite: {row[:4]}"
