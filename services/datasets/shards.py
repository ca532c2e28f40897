"""Recognise files that are parts of one dataset by their names, like train-00000-of-00003.parquet.
Pure."""

import re
from collections.abc import Sequence

SHARD = re.compile(r"(?P<stem>.*?)[-_.](?P<number>\d{2,8})-of-(?P<count>\d{2,8})(?=\.|$)")


def missing_shards(names: Sequence[str]) -> list[str]:
    """Return a sentence for each set of shards that `names` has only in part."""
    shards: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if shard := SHARD.match(name):
            shards.setdefault((shard["stem"], int(shard["count"])), set()).add(int(shard["number"]))
    warnings = []
    for (stem, count), numbers in shards.items():
        if missing := count - len(numbers):
            first = next(number for number in range(count) if number not in numbers)
            warnings.append(
                f"the files {stem}-…-of-{count:05} are {count}, and {missing} of them are not in "
                f"this upload, the first is number {first}: name all files in one upload"
            )
    return warnings


def mixed_sets(names: Sequence[str]) -> list[str]:
    """Return a sentence if `names` are shards of several sets, such as train and test."""
    stems = dict.fromkeys(shard["stem"] for name in names if (shard := SHARD.match(name)))
    if len(stems) < 2:
        return []
    listed = ", ".join(list(stems)[:5])
    return [
        f"the files are parts of {len(stems)} sets ({listed}), and became one dataset: if one is "
        "held out for evaluation, delete the dataset and upload each set under a name of its own"
    ]


def stem_of_shard(name: str) -> str:
    """Return the name of a shard without its number. Any other name comes back unchanged."""
    shard = SHARD.match(name)
    return shard["stem"] if shard and shard["stem"] else name
