"""Which files of a hub's dataset repository are a config and a split. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.datasets.row_checks import DatasetError
from services.datasets.shards import SHARD

PREFIX = "hf://"
REFERENCE = re.compile(
    r"(?:hf://)?(?:datasets/)?(?P<name>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)"
    r"(?:@(?P<revision>[\w.-]+))?(?:/(?P<config>[\w.-]+))??(?:/(?P<split>[\w.-]+))?"
)
FORMATS = (
    *(".parquet", ".jsonl", ".jsonl.gz", ".ndjson"),
    *(".json", ".json.gz", ".csv", ".csv.gz", ".tsv"),
)
"""Files that can be read, best first. If a split has several formats, the best one is taken."""
SPLIT = re.compile(r"(?:^|[-_.])(train|test|validation|valid|val|dev|eval)(?:[-_.]|$)")
HASH = re.compile(r"-[0-9a-f]{16}(?=\.)")
PARTIAL = "partial-"
"""Before the name of a split of which the hub converts only the beginning."""
KNOWN = {"openai/gsm8k": "gsm8k"}
"""Repositories whose rows are those of a well-known file."""
NOT_DATA = ("data", "dataset_infos.json", "config.json", "dataset_info.json")


@dataclass(frozen=True)
class HubReference:
    """A dataset of the hub, as a user names it."""

    name: str
    """org/name."""
    revision: str | None = None
    config: str | None = None
    split: str | None = None

    @property
    def dataset_name(self) -> str:
        """Return the name of the dataset here, if the user chooses none."""
        choice = [self.config or "", self.split or ""]
        named = [part for part in choice if part not in ("", "main", "default", "train")]
        return as_dataset_name("-".join([self.name.partition("/")[2], *named]))

    def is_met_by(self, source: str) -> bool:
        """Whether a dataset with this `source` was fetched by such a reference."""
        try:
            other = hub_reference(source) if source.startswith(PREFIX) else None
        except DatasetError:
            return False
        return other is not None and (
            self.name == other.name
            and self.revision in (None, other.revision)
            and self.config in (None, other.config)
            and (self.split or "train") == other.split
        )

    def at(self, revision: str, config: str, split: str) -> str:
        """Return the full name of what is meant by this reference now."""
        return f"{PREFIX}{self.name}@{revision}/{config}/{split}"


def as_dataset_name(text: str) -> str:
    """Return a name for a dataset that is like `text`, and that its pattern allows."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text.strip())
    return kept.lstrip("._-")[:100] or "dataset"


@dataclass(frozen=True)
class HubFile:
    """A file of a repository."""

    path: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class HubSplit:
    """The files of a split, in their order."""

    config: str
    split: str
    files: list[HubFile]
    notes: list[str]


def hub_reference(text: str) -> HubReference:
    """Read `org/name`, `org/name@revision`, `org/name/split` or `org/name/config/split`, with or
    without `hf://`. Raises DatasetError."""
    match = REFERENCE.fullmatch(text)
    if match is None:
        raise DatasetError(
            f"{text[:200]!r} is no name on the hub: write hf://ORG/NAME, hf://ORG/NAME/SPLIT or "
            "hf://ORG/NAME/CONFIG/SPLIT, with @REVISION behind NAME if you need one"
        )
    return HubReference(**match.groupdict())


def choose_split(reference: HubReference, files: Iterable[HubFile]) -> HubSplit:
    """Return the files of the config and the split that are meant. Raises DatasetError, which lists
    the choices."""
    splits: dict[str, dict[str, list[HubFile]]] = {}
    for file in files:
        if (place := _place(file.path)) is not None:
            config, split = place
            splits.setdefault(config, {}).setdefault(split, []).append(file)
    if not splits:
        raise DatasetError(
            f"{reference.name} has no Parquet, JSON or CSV files on the hub, and its code is never "
            "run: convert it elsewhere, and upload the files"
        )
    config = _one_of("config", reference.config, list(splits), ("default", "main"), reference)
    by_name = splits[config]
    names = [name.removeprefix(PARTIAL) for name in by_name]
    split = _one_of("split", reference.split, names, ("train",), reference)
    notes = []
    if split not in by_name:
        notes.append(f"the hub has converted only the beginning of split {split!r}")
    chosen = by_name.get(split) or by_name[PARTIAL + split]
    suffix = next(end for end in FORMATS if any(file.path.endswith(end) for file in chosen))
    left_out = sorted({_suffix(file.path) for file in chosen} - {suffix})
    if left_out:
        notes.append(f"files in {', '.join(left_out)} were left out: those in {suffix} were taken")
    same = sorted((f for f in chosen if f.path.endswith(suffix)), key=lambda f: f.path)
    return HubSplit(config, split, same, notes)


def _suffix(path: str) -> str:
    return next(end for end in FORMATS if path.endswith(end))


def _one_of(
    kind: str,
    wanted: str | None,
    there: Sequence[str],
    usual: Sequence[str],
    reference: HubReference,
) -> str:
    if wanted is None and len(there) == 1:
        return there[0]
    wanted = wanted or next((name for name in usual if name in there), None)
    if wanted is None or wanted not in there:
        wrong = f"has no {kind} {wanted!r}" if wanted else f"has several {kind}s"
        listed = ", ".join(sorted(there)[:20])
        raise DatasetError(
            f"{reference.name} {wrong}: name one of {listed} with --{kind}, or write "
            f"{reference.name}/CONFIG/SPLIT"
        )
    return wanted


def _place(path: str) -> tuple[str, str] | None:
    """Return the config and the split that a file belongs to, by its path. None: it has no rows."""
    *folders, name = path.split("/")
    if not name.endswith(FORMATS) or name in NOT_DATA or any(f.startswith(".") for f in folders):
        return None
    folders = [folder for folder in folders if folder != "data"]
    stem = HASH.sub("", name)
    if shard := SHARD.match(stem):
        split = str(shard["stem"])
    elif known := SPLIT.search(name):
        split = str(known[1])
    elif folders and (name.split(".")[0].isdecimal() or SPLIT.search(folders[-1])):
        split = folders.pop()
    else:
        split = "train"
    return (folders[0] if folders else "default"), split
