"""The template and the verifier that a dataset brings. Pure.

A submission's own words come first, then those of its dataset, then the recipe's.
"""

from typing import Any

from recipes import merged
from services.contracts.config.data import PromptOptions
from services.contracts.records import DatasetDefaults
from services.gateway.dataset_check import Datasets

OWN = ("template", "rewards")


def with_defaults(
    raw: dict[str, Any],
    datasets: Datasets,
    previous: dict[str, Any] | None = None,
    submitted: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """`raw` with the template and the rewards of its datasets, and by key the name of the dataset
    that has set it.

    `submitted`: what the submission itself says, over a recipe; None: all of `raw`. `previous`: the
    config that a resumed run goes on with. Its datasets are asked and scored as they were, also if
    that run is older than what they bring. A supervised run takes the template of its dataset,
    unless it mixes several."""
    data = raw.get("data")
    if not isinstance(data, dict):
        return raw, {}
    trained = [dataset.defaults for key, dataset in datasets.items() if key.startswith("data.")]
    if previous is not None:
        datasets = {
            key: record for key, record in datasets.items() if _at(previous, key) != _at(raw, key)
        }
    if submitted is None or not _at(submitted, "data.dataset"):
        # A recipe that names its dataset has chosen how that is asked and scored.
        submitted = raw
    before = raw
    defaults = _own(datasets, "data")
    if raw.get("type", "rl") != "rl":
        if defaults and not data.get("mix") and _at(submitted, "data.template") is None:
            raw = {**raw, "data": {**data, "template": defaults["template"]}}
        return raw, _sources(before, raw, datasets)
    if isinstance(mix := data.get("mix"), list):
        by_part = [_own(datasets, f"data.mix.{i}") for i in range(len(mix))]
        data = {**data, "mix": [_filled(part, by_part[i]) for i, part in enumerate(mix)]}
        raw = {**raw, "data": data}
    if defaults and _at(submitted, "data.template") is None:
        raw = {**raw, "data": {**data, "template": defaults["template"]}}
    rewards = submitted.get("rewards")
    if defaults and rewards is None:
        raw = {**raw, "rewards": defaults["rewards"]}
    elif defaults and isinstance(rewards, dict):
        # Places of a list, which is the dataset's.
        raw = {**raw, **merged({"rewards": defaults["rewards"]}, {"rewards": rewards})}
    raw = _with_held_out(raw, datasets, trained)
    return raw, _sources(before, raw, datasets)


def _sources(before: dict[str, Any], after: dict[str, Any], datasets: Datasets) -> dict[str, str]:
    """The names of the datasets that have set keys of `after`, by these keys."""
    sources = {}
    for key, record in datasets.items():
        section = key.removesuffix(".dataset")
        defaults = _own(datasets, section)
        for name in defaults:
            path = name if (section, name) == ("data", "rewards") else f"{section}.{name}"
            if _at(before, path) != _at(after, path) == defaults[name]:
                sources[path] = record.name
    return sources


def _with_held_out(
    raw: dict[str, Any], datasets: Datasets, trained: list[DatasetDefaults | None]
) -> dict[str, Any]:
    """`raw` with those of its held-out datasets. Where the run trains on rows with the same ones,
    it has chosen for itself how they are asked, and evaluates them so."""
    evaluation = raw.get("evaluation")
    if not isinstance(evaluation, dict):
        return raw

    def defaults_of(key: str) -> dict[str, Any]:
        record = datasets.get(f"{key}.dataset")
        return {} if record and record.defaults in trained else _own(datasets, key)

    # The keys that the section itself names hold for `more`, too.
    free = [name for name in OWN if evaluation.get(name) is None]
    first = defaults_of("evaluation")
    if isinstance(more := evaluation.get("more"), list):
        # The keys filled into `evaluation` belong to its dataset, so `more` takes the run's.
        run = {
            "template": (raw.get("data") or {}).get("template") or PromptOptions().template,
            "rewards": raw.get("rewards"),
        }
        others = [
            defaults_of(f"evaluation.more.{i}") or (run if first else {}) for i in range(len(more))
        ]
        more = [_filled(part, others[i], free) for i, part in enumerate(more)]
        evaluation = {**evaluation, "more": more}
    return {**raw, "evaluation": _filled(evaluation, first, free)}


def _own(datasets: Datasets, key: str) -> dict[str, Any]:
    """Return the defaults that the dataset of a section brings."""
    record = datasets.get(f"{key}.dataset")
    defaults: DatasetDefaults | None = record.defaults if record else None
    if defaults is None:
        return {}
    return {
        "template": defaults.template,
        "rewards": [reward.model_dump() for reward in defaults.rewards],
    }


def _filled(section: Any, defaults: dict[str, Any], names: list[str] | None = None) -> Any:
    """`section` with those of `defaults` that it leaves out."""
    if not isinstance(section, dict):
        return section
    missing = {
        name: value
        for name, value in defaults.items()
        if section.get(name) is None
        and value is not None
        and name in (OWN if names is None else names)
    }
    return {**section, **missing}


def _at(config: Any, key: str) -> Any:
    """Return the value at a key path such as `data.mix.0.dataset`; None if the path is missing."""
    for part in key.split("."):
        if isinstance(config, list) and part.isdecimal() and int(part) < len(config):
            config = config[int(part)]
        else:
            config = config.get(part) if isinstance(config, dict) else None
    return config
