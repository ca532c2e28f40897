"""Reads the model folder that the learner exports for a run, without weights: fetches it, loads its
tokenizer, finds its end-of-sequence ids.

Rollout and learner use this tokenizer, so they agree on every token id.
"""

from pathlib import Path
from typing import Any, Protocol

import msgspec

from services.contracts.rows.rendering import PromptTokenizer
from services.contracts.rows.turn_end import eos_token_ids as eos_token_ids
from services.contracts.weights import MODEL_FILES, WeightFile
from services.models import UnusableFolder
from services.volume import Volume

PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names of the plain tokenizer class in transformers 4 and 5."""


class TokenizerLike(PromptTokenizer, Protocol):
    """The part of a Hugging Face tokenizer that rollout uses."""

    eos_token_id: int | None

    def __call__(self, text: str, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> str: ...

    def batch_decode(self, sequences: Any, **options: Any) -> list[str]: ...

    def get_added_vocab(self) -> dict[str, int]: ...

    def get_vocab(self) -> dict[str, int]: ...


class PromptTooLong(ValueError):
    """The prompt leaves not even one token for an answer."""


async def fetch_model(volume: Volume, name: str) -> Path:
    """Fetch the folder `name` of the data volume. Return the whole local folder. Raises what
    `Volume.fetch` raises."""
    index = await volume.fetch(f"{name}/{MODEL_FILES}")
    for file in msgspec.json.decode(index.read_bytes(), type=list[WeightFile]):
        await volume.fetch(msgspec.structs.replace(file, name=f"{name}/{file.name}"))
    return volume.path(name)


def load_tokenizer(model: Path, trust_remote_code: bool = False) -> TokenizerLike:
    """Load the tokenizer of an exported model folder.

    A tokenizer that its tokenizer.json defines completely is loaded from that file. AutoTokenizer
    would load the same, but imports torch first, which takes four seconds. Raises UnusableFolder.
    """
    import transformers

    config = msgspec.json.decode((model / "tokenizer_config.json").read_bytes())
    plain = config.get("tokenizer_class") in PLAIN and "auto_map" not in config
    loader = transformers.PreTrainedTokenizerFast if plain else transformers.AutoTokenizer
    try:
        tokenizer: TokenizerLike = loader.from_pretrained(
            str(model), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # tokenizers raises nothing more precise
        raise UnusableFolder(f"the tokenizer in {model} does not load: {error}") from error
    return tokenizer


def vocabulary(model: Path) -> int:
    return int(_text_config(model)["vocab_size"])


def layers(model: Path) -> int:
    """Return the number of the model's layers; 0 if its config does not say."""
    return int(_text_config(model).get("num_hidden_layers") or 0)


def _text_config(model: Path) -> dict[str, Any]:
    config = msgspec.json.decode((model / "config.json").read_bytes())
    text: dict[str, Any] = config.get("text_config", config)
    return text


def answer_tokens(prompt_tokens: list[int], context: int) -> int:
    """Return how many tokens an answer may have. Raises PromptTooLong if that is 0."""
    tokens = context - len(prompt_tokens)
    if tokens < 1:
        raise PromptTooLong(
            f"the prompt has {len(prompt_tokens)} tokens and the context {context} "
            "(rollout.vllm.max_model_len): no room for an answer"
        )
    return tokens
