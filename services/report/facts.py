"""What a report is made of: a run, its metrics and its answers, as the API gives them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from services.contracts.config import ConfigError, parse_config

Row = Mapping[str, Any]


def datasets_in(config: Any) -> set[str]:
    """What a config, or a part of it, calls the datasets that it uses."""
    if isinstance(config, list):
        return {found for one in config for found in datasets_in(one)}
    if not isinstance(config, dict):
        return set()
    own = [config.get("dataset"), *_listed(config.get("datasets"))]
    found = {one for one in own if isinstance(one, str) and one}
    return found.union(*(datasets_in(one) for one in config.values()))


def with_names(record: Row, names: Mapping[str, str]) -> Row:
    """A run's record whose config has the names of datasets in place of their ids."""
    return {**record, "config": _renamed(record["config"], names)}


def _renamed(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _renamed(one, names, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, names, key) for one in value]
    named = key in ("dataset", "datasets") and isinstance(value, str)
    return names.get(value, value) if named else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True)
class Facts:
    """One run. `record`, `audit`, `dataset` and `workers` are bodies of the API."""

    record: Row
    metrics: Sequence[Row] = ()
    """All lines of its metrics, steps and evaluations."""
    first: Sequence[Row] = ()
    """Some answers of its first step,"""
    last: Sequence[Row] = ()
    """and of its last one."""
    audit: Row | None = None
    dataset: Row | None = None
    workers: Sequence[Row] = ()
    """Of its pool, now."""
    recipe: Row | None = None
    """The config of the recipe that the run began with."""
    version: str = ""
    """Headrace's."""
    made: float = 0.0
    """When the report was made, in Unix seconds."""

    @property
    def title(self) -> str:
        """Its name and id."""
        return f"{self.record['name']} ({self.record['id']})"

    @property
    def recipe_name(self) -> str:
        """The recipe that it began with."""
        return str(self.record.get("recipe") or self.record["name"])

    @property
    def seconds(self) -> float:
        """From its start to its end, or until now; 0 if it has not started."""
        started = self.record["started"]
        return (self.record["finished"] or self.made) - started if started else 0.0

    def by_set(self) -> "Facts":
        """The same, with evaluations told apart: metrics of the first held-out set keep their
        names, those of another one end with its name, like `evaluation/accuracy (NAME)`."""
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
        """A metric by step: steps, and its values. Left out where it is missing or not finite."""
        key = "evaluation/step" if name.startswith("evaluation/") else "step"
        pairs = [
            (float(row[key]), float(row[name]))
            for row in self.metrics
            if key in row and isinstance(row.get(name), int | float)
        ]
        return [x for x, _ in pairs], [y for _, y in pairs]

    @property
    def names(self) -> list[str]:
        """All metrics that it has numbers of."""
        found = {
            name: None
            for row in self.metrics
            for name, value in row.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        return sorted(found)


@dataclass(frozen=True)
class Difference:
    """A key of two configs."""

    key: str
    run: Any
    other: Any


MISSING = "(not set)"


def differences(run: Row, other: Row) -> list[Difference]:
    """The keys that differ between two whole configs."""
    ours, theirs = dict(_leaves(run, "")), dict(_leaves(other, ""))
    return [
        Difference(key, ours.get(key, MISSING), theirs.get(key, MISSING))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key, MISSING) != theirs.get(key, MISSING)
    ]


def whole_recipe(recipe: Row, run: Row) -> Row | None:
    """A recipe's config with its defaults, and with the model and the dataset of `run` where it
    names none. None if it is of another type, or cannot be read."""
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


@dataclass(frozen=True)
class Share:
    """A part of a run's time."""

    name: str
    seconds: float
    share: float


PARTS = {
    "time/waiting_for_groups": "the learner waits for groups",
    "time/rows": "reading rows",
    "time/training": "training",
    "time/validation": "validation",
    "time/publishing": "publishing weights",
    "time/checkpointing": "checkpoints",
}


def time_spent(facts: Facts) -> list[Share]:
    """Where the time of the steps went, with what no metric names at the end; nothing of a run that
    does not measure it."""
    total = sum(facts.series("time/step")[1])
    measured = {said: facts.series(name)[1] for name, said in PARTS.items()}
    spent = {said: sum(seconds) for said, seconds in measured.items() if seconds}
    if total <= 0 or not any(spent.values()):
        return []
    spent["anything else"] = max(0.0, total - sum(spent.values()))
    return [Share(name, seconds, seconds / total) for name, seconds in spent.items()]


@dataclass(frozen=True)
class Hardware:
    """What a pool's workers compute on."""

    hosts: list[str]
    gpus: dict[str, int] = field(default_factory=dict)
    """Number by name."""
    vllm: list[str] = field(default_factory=list)
    """Versions."""


def hardware(workers: Sequence[Row]) -> Hardware:
    """By their heartbeats. A GPU that several of them share counts once."""
    seen: dict[str, str] = {}
    for worker in workers:
        for gpu in worker.get("devices") or ():
            seen[gpu["uuid"]] = gpu["name"]
    names = list(seen.values())
    hosts = sorted({str(worker["host"]) for worker in workers})
    versions = {worker["vllm_version"] for worker in workers if worker.get("vllm_version")}
    counted = {name: names.count(name) for name in sorted(set(names))}
    return Hardware(hosts, counted, sorted(versions))
