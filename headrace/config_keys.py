"""Values of a config document by key path, such as `data.mix.0.dataset`. Pure.

A document is a config as JSON: the body of a submission, a recipe, the config in a record. Recipe,
dataset and submission are merged as documents. Everything after `parse_config` works on the typed
config.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

POLICY = "model.path"
CRITIC = "algorithm.critic.path"
TEACHER = "algorithm.teacher.path"
REFERENCE = "algorithm.kl.reference.path"
MODEL_PATHS = (POLICY, CRITIC, TEACHER, REFERENCE)
"""The keys that name a model. Chains, submission, deletion and retention follow a run's models to
other runs by this list."""
MOST_DATASETS = 256
"""The most datasets of a mixture, an evaluation or a validation. The limit exists because datasets
are checked in pairs."""
_DATASETS = (("data", "mix"), ("evaluation", "more"), ("validation", "datasets"))
"""The sections that name a dataset, and the lists in them that name others."""
TAGS = ("type", "source")
"""Keys that tell the kinds of a section apart."""
ANYWHERE = (*TAGS, "name", "path")
"""Keys of many sections: alone they name nothing."""
EditedKey = Literal["max_steps", "max_staleness", "evaluation_every", "checkpoint_every", "lr"]
CONFIG_KEYS: dict[EditedKey, str] = {
    "max_steps": "training.max_steps",
    "max_staleness": "rollout.max_staleness",
    "evaluation_every": "evaluation.every",
    "checkpoint_every": "training.checkpoint_every",
    "lr": "optimizer.lr",
}
"""Where the config of a run that samples has what an edit may change."""
SFT_KEYS: dict[EditedKey, str] = {
    "max_steps": "training.max_steps",
    "evaluation_every": "validation.every",
    "checkpoint_every": "training.checkpoint_every",
    "lr": "optimizer.lr",
}
"""Where the config of a supervised run has it."""


def value_at(document: Any, key: str) -> Any:
    """The value at a key path, or None if the document has no such place."""
    for name in key.split("."):
        if isinstance(document, list):
            is_place = name.isdecimal() and int(name) < len(document)
            document = document[int(name)] if is_place else None
        else:
            document = document.get(name) if isinstance(document, dict) else None
    return document


def text_at(document: Any, key: str) -> str | None:
    """The text at a key path, or None for anything else and for an empty text."""
    value = value_at(document, key)
    return value if value and isinstance(value, str) else None


def with_value(document: Any, key: str, value: Any) -> Any:
    """`document` with `value` at the key path `key`. Missing sections are made."""
    name, _, rest = key.partition(".")
    inner = with_value(value_at(document, name), rest, value) if rest else value
    if isinstance(document, list):
        return [*document[: int(name)], inner, *document[int(name) + 1 :]]
    return {**(document if isinstance(document, dict) else {}), name: inner}


def keys_of(section: str, others: str, count: int) -> list[str]:
    """The keys of a section and of `count` more that are listed in it: `data`, `data.mix.0`, …"""
    return [section, *(f"{section}.{others}.{i}" for i in range(count))]


def dataset_names(document: Any) -> dict[str, str]:
    """The names or ids of the datasets in a config, by the keys that name them."""
    names: dict[str, str | None] = {}
    for section, others in _DATASETS:
        entries = value_at(document, f"{section}.{others}")
        count = len(entries) if isinstance(entries, list) else 0
        # `parse_config` refuses a longer list.
        for key in keys_of(section, others, count if count <= MOST_DATASETS else 0):
            names[f"{key}.dataset"] = text_at(document, f"{key}.dataset")
            if names[f"{key}.dataset"] is None and section == "validation":
                # A validation set may be its name alone.
                names[f"{key}.dataset"] = text_at(document, key)
    return {key: name for key, name in names.items() if name is not None}


def agents_lease(config: Any) -> bool:
    """Whether agents lease the groups of a run with this config. Live traffic leases none."""
    is_live = value_at(config, "data.source") == "sessions"
    return value_at(config, "rollout.episode.type") == "sessions" and not is_live


def edited_keys(kind: str) -> Mapping[str, str]:
    """Return where the config of a run of this kind has what an edit may change."""
    keys = SFT_KEYS if kind == "sft" else CONFIG_KEYS
    return {str(key): place for key, place in keys.items()}


def same_name(keys: Iterable[str], path: list[str]) -> list[str]:
    """Those of `keys` that have the name of `path`: those in a section of the same name, else the
    least deep ones."""
    *above, name = path
    # The number of an element in a list names no section.
    above = [part for part in above if not part.isdigit()]
    sections = ["evaluation" if part.startswith(("eval", "val")) else part for part in above]
    ranks = {
        key: (
            next((i for i, part in enumerate(sections) if part in key.split(".")[:-1]), len(path)),
            key.count("."),
        )
        for key in keys
        if key.rpartition(".")[2] == name
    }
    best = min(ranks.values(), default=(0, 0))
    if best[0] == len(path) and name in ANYWHERE:
        return []
    return [key for key, rank in ranks.items() if rank == best][:3]
