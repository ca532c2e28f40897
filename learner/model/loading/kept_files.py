"""Keep the files of a model's folder, without its weights, as they are.

If transformers 5 rewrote them, an older transformers would read another model: it finds no
`rope_theta` in the new config and takes a default. Therefore a checkpoint has the files that its
model was loaded from, and only what the run has changed differs.
"""

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from services.contracts.weights import ADAPTER_CONFIG, MODEL_FILES
from services.models import open_inside
from services.models.folder import CONFIG, GENERATION, TEMPLATES, cache_or_self
from services.runtime.logs import get_logger
from services.volume.checkpoint import CARD, LEGAL, MANIFEST

log = get_logger(__name__)

DESCRIPTIONS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", CARD, *LEGAL)
"""Files that are kept. Python files are also kept for a model with code."""
NOT_KEPT = (
    # Indexes of weights, and other files about the layout of weights.
    "*.index.json", "params.json", "*quant_config.json", "quantize_config.json",
    # Left over from an earlier training.
    "trainer_state.json", "*_results.json", "training_args.json",
    # Files that checkpoints and runs write themselves.
    MANIFEST, MODEL_FILES, ADAPTER_CONFIG,
)  # fmt: skip
LARGEST = 64 << 20
"""Most bytes of one file, which stays in memory. The largest tokenizers are half as large."""
TokenizerState = tuple[int, str, str]
CHANGED = "> **Changed:** Headrace trained these weights, starting from the model of this card.\n\n"
"""Licences such as Apache 2.0 (section 4b) require a notice in changed files."""


def kept_files(folder: Path, with_code: bool) -> dict[str, bytes]:
    """Return the files of the model in `folder` except its weights, by name. `with_code`: include
    Python files. Raises OSError."""
    root, files = cache_or_self(folder), {}
    for name in sorted(_names(folder, with_code)):
        with os.fdopen(open_inside(root, folder / name), "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                log.warning("a file is too large to go with the model", file=str(folder / name))
                continue
            files[name] = file.read()
    if CARD in files:
        files[CARD] = marked_as_changed(files[CARD])
    return files


def with_adapter(base: Mapping[str, bytes], adapter: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a model that is merged from a base and an adapter: the adapter's
    tokenizer, and everything else from the base."""
    kept = {name: text for name, text in base.items() if not is_tokenizer(name)}
    return kept | {name: text for name, text in adapter.items() if is_tokenizer(name)}


def is_tokenizer(name: str) -> bool:
    """Whether a kept file belongs to the tokenizer: neither config nor code nor documentation."""
    others = (CONFIG, GENERATION, CARD, *LEGAL, "*.py", "*processor_config.json")
    return not _matches(name, others)


def beside_adapter(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files that go with an adapter: the tokenizer and licences."""
    return {n: text for n, text in files.items() if is_tokenizer(n) or _matches(n, LEGAL)}


def tokenizer_state(tokenizer: Any) -> TokenizerState:
    """Return the parts of a tokenizer that a run may change: size, special tokens, chat
    template."""
    return len(tokenizer), str(tokenizer.special_tokens_map), str(tokenizer.chat_template)


def marked_as_changed(card: bytes) -> bytes:
    """Return a model card that begins with a note that its weights were trained further."""
    text = card.decode(errors="replace")
    if CHANGED.strip() in text:
        return card
    lines = text.splitlines(keepends=True)
    # The hub's metadata comes first, between two lines of dashes.
    ends = [i for i, line in enumerate(lines) if line.strip() == "---"]
    begin = ends[1] + 1 if len(ends) > 1 and ends[0] == 0 else 0
    return "".join([*lines[:begin], CHANGED, *lines[begin:]]).encode()


def _names(folder: Path, with_code: bool) -> Iterator[str]:
    patterns = (*DESCRIPTIONS, "*.py") if with_code else DESCRIPTIONS
    for name in os.listdir(folder):
        if _matches(name, patterns) and not _matches(name, NOT_KEPT) and (folder / name).is_file():
            yield name
    if (folder / TEMPLATES).is_dir():
        yield from (f"{TEMPLATES}/{name}" for name in os.listdir(folder / TEMPLATES))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
