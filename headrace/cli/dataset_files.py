"""The files that `headrace datasets add` names, and how they are sent."""

import contextlib
import glob
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from headrace.cli.output import CliError, err, escape

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

FILES = "a .jsonl, .json, .csv, .parquet or .tar file"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""A dataset's name."""
ENDINGS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet", "pq", "tar", "tgz")
SUFFIXES = tuple(f".{ending}{packed}" for ending in ENDINGS for packed in ("", ".gz"))
"""How the names of files end that are taken from a folder."""
HUB = "hf://"
"""Before the name of a dataset of the hub."""
LARGE_BYTES = 32 << 20
"""Files that are larger together are sent in parts, so that a broken upload goes on."""
HUB_SECONDS = 3600.0
"""How long the gateway may fetch files of the hub."""
BYTES_A_SECOND = 2 << 20
"""Slowest reading of the rows that is waited for."""


def with_name(
    name: str | None, files: list[str], hub: str | None
) -> tuple[str | None, list[str], str | None]:
    """Return the name of the dataset, its files, and its name on the hub. The first argument is the
    name if files follow it, or if the rows come from the hub."""
    first, *others = files or [""]
    is_name = re.fullmatch(NAME, first) and not first.endswith(SUFFIXES)
    if name is None and is_name and (hub or (others and not Path(first).exists())):
        name, files = first, others
    if hub is None and len(files) == 1 and files[0].startswith(HUB):
        files, hub = [], files[0]
    if hub and files:
        raise CliError(f"{files[0]} and the hub's {hub} are two sources: name one")
    if not (hub or files):
        raise CliError(f"name {FILES}, or a dataset of the hub with --hub ORG/NAME")
    return name, files, hub


def hub_form(
    hub: str | None, revision: str | None, config: str | None, split: str | None
) -> dict[str, str]:
    """Return the part of an upload's form that names a dataset of the hub."""
    options = {"--revision": revision, "--config": config, "--split": split}
    if hub is None:
        if given := [option for option, value in options.items() if value]:
            raise CliError(f"{given[0]} is of a dataset of the hub: name that with --hub ORG/NAME")
        return {}
    parts = [hub + (f"@{revision}" if revision else "")]
    return {"hub": "/".join([*parts, *filter(None, [config, split or (config and "train")])])}


def files_at(file: str) -> list[Path]:
    """List the file with this name, the datasets' files of this folder, or the files that match the
    pattern, sorted by names and numbers."""
    path = Path(file)
    if path.is_file():
        return [path]
    pattern = f"{glob.escape(file)}/*" if path.is_dir() else file
    names = [name for name in glob.glob(pattern) if os.path.isfile(name)]
    if path.is_dir():
        others = [name for name in names if not name.endswith(SUFFIXES)]
        names = [name for name in names if name.endswith(SUFFIXES)]
        if names and others:
            listed = ", ".join(sorted(map(os.path.basename, others))[:5])
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            err.print(f"[dim]left out of {escape(file)}: {escape(listed)}{more}[/]", soft_wrap=True)
    if not names:
        wrong = "is a folder without such a file" if path.is_dir() else "does not exist"
        raise CliError(f"{file} {wrong}: name {FILES}")
    return [Path(name) for name in sorted(names, key=_by_numbers)]


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts part-2 before part-10."""
    return [(int(p) if p.isdecimal() else -1, p) for p in re.split(r"([0-9]+)", name)]


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from None


def send_files(api: "Gateway", paths: list[Path], form: dict[str, str]) -> dict[str, Any]:
    """Upload the files as one dataset. Return the gateway's answer."""
    total = sum(path.stat().st_size for path in paths)
    if "hub" in form:
        fetched: dict[str, Any] = api.post("/v1/datasets", seconds=HUB_SECONDS, data=form)
        return fetched
    if total > LARGE_BYTES:
        parts = _sent_in_parts(api, paths, total)
        err.print("[dim]sent; the gateway reads the rows[/]")
        seconds = total / BYTES_A_SECOND
        record = api.post("/v1/datasets", seconds=seconds, data={**form, "upload": parts})
    else:
        with contextlib.ExitStack() as opened:
            files = [("file", (path.name, opened.enter_context(_open(path)))) for path in paths]
            record = api.post("/v1/datasets", data=form, files=files)
    answer: dict[str, Any] = record
    return answer


def _sent_in_parts(api: "Gateway", paths: list[Path], total: int) -> list[str]:
    """Send the files in parts, with a bar on a terminal. Return the ids of the uploads."""
    if not sys.stderr.isatty():
        return api.send_parts(paths, lambda sent, total: None)
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=total)
        return api.send_parts(paths, lambda sent, _: bar.update(task, completed=sent))
