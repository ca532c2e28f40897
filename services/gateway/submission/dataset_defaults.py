"""The template and the verifier that a dataset brings. Pure.

A submission's own words come first, then those of its dataset, then the recipe's.
"""

from typing import Any

from headrace.config_keys import value_at, with_value
from recipes import merged
from services.contracts.config.data import PromptOptions
from services.gateway.submission.dataset_check import Datasets

Options = dict[str, Any]
"""A template and rewards."""


def with_defaults(
    raw: dict[str, Any],
    datasets: Datasets,
    previous: dict[str, Any] | None = None,
    submitted: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return `raw` with the template and the rewards that its datasets bring, and for each key that
    a dataset has set the dataset's name. Raises ConfigError if the submission changes a place of
    the rewards that the dataset does not have.

    `submitted`: the submission without its recipe; None: all of `raw`. `previous`: the config of
    the run that is resumed. Its datasets keep the template and the rewards of that run, whatever
    they bring by now. A supervised run takes its dataset's template, unless it mixes several
    datasets.
    """
    if not value_at(submitted, "data.dataset"):
        # A recipe that names its dataset has chosen how that is asked and scored.
        submitted = raw
    brought = _brought(raw, datasets, previous)
    settings, sources = dict[str, Any](), dict[str, str]()
    for section, options in brought.items():
        for name, value in options.items():
            is_run = section == "data"
            key = "rewards" if is_run and name == "rewards" else f"{section}.{name}"
            if value_at(submitted, key) is None if is_run else _is_open(raw, section, name):
                settings[key] = value
                if value_at(raw, key) != value:
                    sources[key] = datasets[f"{section}.dataset"].name
    rewards = value_at(submitted, "rewards")
    if isinstance(rewards, dict) and "rewards" in brought.get("data", {}):
        # Places of a list, which is the dataset's.
        settings |= merged({"rewards": brought["data"]["rewards"]}, {"rewards": rewards})
    whole = raw
    for key, value in settings.items():
        whole = with_value(whole, key, value)
    if "evaluation" in brought:
        # The options filled into `evaluation` belong to its dataset: the others take the run's.
        template = value_at(whole, "data.template") or PromptOptions().template
        run: Options = {"template": template, "rewards": value_at(whole, "rewards")}
        for section in (key.removesuffix(".dataset") for key in datasets):
            if section.startswith("evaluation.more.") and section not in brought:
                for name in (name for name in run if _is_open(raw, section, name)):
                    whole = with_value(whole, f"{section}.{name}", run[name])
    return whole, sources


def _is_open(raw: dict[str, Any], section: str, name: str) -> bool:
    """Whether a section leaves an option open. `evaluation` decides for its further sets, too."""
    inherited = ["evaluation"] if section.startswith("evaluation.") else []
    return all(value_at(raw, f"{key}.{name}") is None for key in (section, *inherited))


def _brought(
    raw: dict[str, Any], datasets: Datasets, previous: dict[str, Any] | None
) -> dict[str, Options]:
    """The options that datasets bring, by the sections that name them."""
    trained = [dataset.defaults for key, dataset in datasets.items() if key.startswith("data.")]
    brought: dict[str, Options] = {}
    for key, dataset in datasets.items():
        is_kept = previous is not None and value_at(previous, key) == value_at(raw, key)
        # A run asks rows that it also trains on as it does in training.
        is_trained = key.startswith("evaluation.") and dataset.defaults in trained
        if dataset.defaults is not None and not (is_kept or is_trained):
            brought[key.removesuffix(".dataset")] = {
                "template": dataset.defaults.template,
                "rewards": [reward.model_dump() for reward in dataset.defaults.rewards],
            }
    if raw.get("type", "rl") == "rl":
        return brought
    if "data" not in brought or value_at(raw, "data.mix"):
        return {}
    return {"data": {"template": brought["data"]["template"]}}
