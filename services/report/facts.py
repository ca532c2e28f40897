"""The facts of a report: a run, its metrics and its answers, as the API returns them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.config_keys import dataset_names, with_value
from services.contracts.config import ConfigError, parse_config
from services.contracts.prices import Prices, SamplePrice, gpus_at_work
from services.evaluations.comparison import Comparison

Row = Mapping[str, Any]


def with_names(record: Row, names: Mapping[str, str]) -> Row:
    config = record["config"]
    for key, dataset in dataset_names(config).items():
        config = with_value(config, key, names.get(dataset, dataset))
    return {**record, "config": config}


@dataclass(frozen=True)
class Facts:
    """The facts of one run. `record`, `dataset` and `workers` are bodies of the API."""

    record: Row
    metrics: Sequence[Row] = ()
    """All rows of its metrics, of steps and evaluations."""
    first: Sequence[Row] = ()
    """Some answers of its first step."""
    last: Sequence[Row] = ()
    """Some answers of its last step."""
    dataset: Row | None = None
    workers: Sequence[Row] = ()
    """The workers of its pool, now."""
    recipe: Row | None = None
    """The config of its recipe."""
    paired: Sequence[tuple[str, int, int, Comparison]] = ()
    """For each held-out set its name, the steps of its first and last evaluation, and the last
    against the first on the same rows."""
    version: str = ""
    """The version of Headrace."""
    made: float = 0.0
    """Unix time of the report."""
    prices: Prices | None = None

    @property
    def title(self) -> str:
        return f"{self.record['name']} ({self.record['id']})"

    @property
    def recipe_name(self) -> str:
        return str(self.record.get("recipe") or self.record["name"])

    @property
    def seconds(self) -> float:
        """Seconds from its start to its end, or until now. 0 if it has not started."""
        started = self.record["started"]
        return (self.record["finished"] or self.made) - started if started else 0.0

    @property
    def devices(self) -> dict[str, str]:
        """The GPUs of the workers: their names by UUID. A GPU that several share counts once."""
        return {gpu["uuid"]: gpu["name"] for w in self.workers for gpu in w.get("devices") or ()}

    @property
    def gpus(self) -> tuple[int, int, bool]:
        """GPUs of the learner, GPUs of the workers, and whether these are the same, in turns."""
        how = self.record.get("computation") or {}
        learner = re.match(r"(\d+) × (?!rank)", how.get("device", ""))
        return int(learner[1]) if learner else 0, len(self.devices), "gpu" in how

    @property
    def sample_price(self) -> SamplePrice | None:
        """What samples have cost: the GPUs from the run's start to its end, for the samples that it
        has trained."""
        if self.prices is None or not self.seconds:
            return None
        workers = [
            (
                w.get("worker_class", ""),
                {gpu["uuid"]: gpu["name"] for gpu in w.get("devices") or ()},
            )
            for w in self.workers
        ]
        gpus = gpus_at_work(self.record.get("computation") or {}, workers)
        seconds, rates = (
            dict(zip(*self.series(name), strict=True))
            for name in ("time/step", "throughput/samples_per_second")
        )
        trained = sum(seconds[step] * rate for step, rate in rates.items() if step in seconds)
        return self.prices.of_samples(gpus, trained / self.seconds)

    def by_set(self) -> "Facts":
        """Rename the metrics of all held-out sets but the first: `evaluation/accuracy (NAME)`."""
        sets = [row["evaluation/name"] for row in self.metrics if "evaluation/name" in row]
        rows = []
        for row in self.metrics:
            held_out = row.get("evaluation/name")
            if held_out is not None and held_out != sets[0]:
                kept = ("time", "evaluation/step", "evaluation/name")
                row = {n if n in kept else f"{n} ({held_out})": v for n, v in row.items()}
            rows.append(row)
        return replace(self, metrics=rows)

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """A metric by step: the steps, and its values. Steps without a number are left out."""
        key = "evaluation/step" if name.startswith("evaluation/") else "step"
        pairs = [
            (float(row[key]), float(row[name]))
            for row in self.metrics
            if key in row and isinstance(row.get(name), int | float)
        ]
        return [x for x, _ in pairs], [y for _, y in pairs]

    @property
    def names(self) -> list[str]:
        named = {
            name: None
            for row in self.metrics
            for name, value in row.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        return sorted(named)


Difference = tuple[str, Any, Any]
"""A key that differs between two configs, and both values."""
MISSING = "(not set)"


def differences(run: Row, other: Row) -> list[Difference]:
    """List the keys that differ between two whole configs. If only one config has a section,
    list only the section's keys that differ from their defaults."""
    ours, theirs = dict(_leaves(run, "")), dict(_leaves(other, ""))
    set_here, set_there = _set_keys(run), _set_keys(other)
    keys = ours.keys() & theirs.keys() | ours.keys() & set_here | theirs.keys() & set_there
    return [
        (key, ours.get(key, MISSING), theirs.get(key, MISSING))
        for key in sorted(keys)
        if ours.get(key, MISSING) != theirs.get(key, MISSING)
    ]


def _set_keys(config: Row) -> set[str]:
    """The keys of a whole config that are not at their defaults."""
    try:
        changed = parse_config(config).model_dump(mode="json", exclude_defaults=True)
    except ConfigError:
        return {key for key, _ in _leaves(config, "")}
    return {key for key, _ in _leaves(changed, "")}


def whole_recipe(recipe: Row, run: Row) -> Row | None:
    """Fill in a recipe's config with defaults, and with the model and dataset of `run` if they are
    missing. Return None if the recipe has another type or cannot be read."""
    if recipe.get("type", "rl") != run.get("type", "rl"):
        return None
    raw = {**recipe}
    for section, key in (("model", "path"), ("data", "dataset")):
        named = run.get(section, {}).get(key)
        raw[section] = ({key: named} if named else {}) | dict(raw.get(section, {}))
    try:
        return parse_config(raw).model_dump(mode="json")
    except ConfigError:
        return None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


PARTS = {
    "time/waiting_for_groups": "the learner waits for groups",
    "time/rows": "reading rows",
    "time/training": "training",
    "time/validation": "validation",
    "time/publishing": "publishing weights",
    "time/checkpointing": "checkpoints",
}


def time_spent(facts: Facts) -> dict[str, float]:
    """Divide the seconds of the steps into PARTS and the rest. Empty if they were not measured."""
    total = sum(facts.series("time/step")[1])
    measured = {label: facts.series(name)[1] for name, label in PARTS.items()}
    spent = {label: sum(seconds) for label, seconds in measured.items() if seconds}
    if total <= 0 or not any(spent.values()):
        return {}
    return spent | {"anything else": max(0.0, total - sum(spent.values()))}
