"""Checks what a tokenizer_config.json asks of transformers."""

import re
from collections.abc import Mapping
from typing import Any

from services.models.errors import UnusableFolder

NOT_OPENED = {"special_tokens_map_file", "tokenizer_file", "added_tokens_file"}
"""Written by older versions of transformers; newer ones replace or ignore them."""


def check_tokenizer_config(config: Mapping[str, Any], name: str) -> None:
    """Raise UnusableFolder for a config that names files elsewhere, or lacks a template in a field
    of one."""
    for key, value in config.items():
        opened = key.endswith("_file") and key not in NOT_OPENED
        if isinstance(value, str) and (
            key in ("vocab", "merges") or (opened and (value.startswith("..") or "/" in value))
        ):
            raise UnusableFolder(
                f"{name}: {key} names a file of its own ({value[:100]!r}): a tokenizer reads the "
                "files of its folder; leave the key out"
            )
    if config.get("init_inputs"):
        raise UnusableFolder(f"{name}: init_inputs is not supported: leave it out")
    if not _is_template(config.get("chat_template")):
        raise UnusableFolder(
            f"{name}: chat_template is neither a template nor templates with plain names"
        )


def _is_template(value: Any) -> bool:
    """Return whether the value is a template. Its name becomes a file's, and must not lead
    elsewhere."""
    if isinstance(value, list):
        if not all(isinstance(template, dict) for template in value):
            return False
        value = {template.get("name"): template.get("template") for template in value}
    if not isinstance(value, dict):
        return isinstance(value, str | None)
    return all(
        isinstance(text, str) and re.fullmatch(r"[\w-][\w.-]*", str(key))
        for key, text in value.items()
    )
