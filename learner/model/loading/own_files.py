"""The files of a model's folder without its weights, kept as they are.

Written anew, they would be another model to an older transformers: it finds no `rope_theta` in a
config of transformers 5, and takes a default. So a checkpoint has the files that its model was
loaded from, and only what the run has changed is changed in them.
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
"""Files that are kept; with a model's code `*.py`, too."""
NOT_KEPT = (
    # Lists of weights, and how other files hold them.
    "*.index.json", "params.json", "*quant_config.json", "quantize_config.json",
    # Left over from another training.
    "trainer_state.json", "*_results.json", "training_args.json",
    # A checkpoint's and a run's own.
    MANIFEST, MODEL_FILES, ADAPTER_CONFIG,
)  # fmt: skip
LARGEST = 64 << 20
"""Bytes of one file, which stays in memory. The largest tokenizers are half as large."""
TokenizerState = tuple[int, str, str]
CHANGED = "> **Changed:** Headrace trained these weights, starting from the model of this card.\n\n"
"""Licences like Apache 2.0 (section 4b) want changed files to say so."""


def own_files(folder: Path, with_code: bool) -> dict[str, bytes]:
    """The files of the model in `folder` but its weights, by their names. `with_code`: also its
    Python files. Raises OSError."""
    root, found = cache_or_self(folder), {}
    for name in sorted(_names(folder, with_code)):
        with os.fdopen(open_inside(root, folder / name), "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                log.warning("a file is too large to go with the model", file=str(folder / name))
                continue
            found[name] = file.read()
    if CARD in found:
        found[CARD] = marked_as_changed(found[CARD])
    return found


def with_adapter(base: Mapping[str, bytes], adapter: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a model that is merged from a base and an adapter: the adapter's tokenizer, and
    all else of the base."""
    kept = {name: text for name, text in base.items() if not is_tokenizer(name)}
    return kept | {name: text for name, text in adapter.items() if is_tokenizer(name)}


def is_tokenizer(name: str) -> bool:
    """Whether a kept file is neither config, nor code, nor for people."""
    others = (CONFIG, GENERATION, CARD, *LEGAL, "*.py", "*processor_config.json")
    return not _matches(name, others)


def beside_adapter(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that a folder of an adapter has: the tokenizer and licences."""
    return {n: text for n, text in files.items() if is_tokenizer(n) or _matches(n, LEGAL)}


def tokenizer_state(tokenizer: Any) -> TokenizerState:
    """Return what a run may change of a tokenizer: size, special tokens, chat template."""
    return len(tokenizer), str(tokenizer.special_tokens_map), str(tokenizer.chat_template)


def marked_as_changed(card: bytes) -> bytes:
    """A model card that says first that the weights are not the ones it describes."""
    text = card.decode(errors="replace")
    if CHANGED.strip() in text:
        return card
    lines = text.splitlines(keepends=True)
    # Metadata for the hub come first, between two lines of dashes.
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
