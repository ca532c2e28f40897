"""Datasets, and the uploads that they are made of. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501, UP028

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from headrace import operations
from headrace.models import DatasetRecord, Uploaded
from headrace.rows import (
    LARGE_BYTES,
    PART_BYTES,
    Progress,
    file_of_rows,
    files_of,
    fingerprint,
    named_or_rows,
    paths_in,
)
from headrace.synchronous.connection import Connection


class Datasets:
    """The datasets of a gateway."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    def upload(
        self,
        data: str | Path | Sequence[str | Path] | Iterable[Mapping[str, Any]],
        *,
        name: str | None = None,
        mapping: str | Mapping[str, Any] | None = None,
        verifier: str | None = None,
        bad_rows: Literal["refuse", "skip"] | None = None,
        progress: Progress | None = None,
    ) -> Uploaded:
        """Upload files or rows. `data`: a file (JSON lines, CSV, Parquet, tar), a folder of files,
        a pattern such as `train-*.parquet`, or a list of these, which become one dataset in this
        order; a dataset of the hub, `hf://ORG/NAME/CONFIG/SPLIT`; or rows. `mapping`: columns, or
        the name of a well-known file such as gsm8k. `bad_rows="skip"` leaves out rows that cannot
        be used, and the answer counts them; otherwise one such row refuses the upload.
        `progress` is called with the bytes that were sent and those in all. The same rows again
        change nothing. Large files are sent in parts: the same call goes on where another one
        stopped."""
        columns = mapping if mapping is None or isinstance(mapping, str) else json.dumps(mapping)
        form: dict[str, Any] = {
            "name": name,
            "mapping": columns,
            "verifier": verifier,
            "bad_rows": bad_rows,
        }
        named, rows = named_or_rows(data)
        if len(named) == 1 and str(named[0]).startswith("hf://"):
            form["hub"] = str(named[0])
        elif named:
            paths = paths_in(named)
            if sum(path.stat().st_size for path in paths) > LARGE_BYTES:
                form["upload"] = self.send_parts(paths, progress)
            else:
                form["files"] = files_of(paths, progress)
        else:
            form["files"] = file_of_rows(rows, name, progress)
        return self._client.send(operations.datasets_create(**form))

    def send_parts(self, paths: Sequence[Path], progress: Progress | None = None) -> list[str]:
        """Send files in parts, without the bytes that have arrived before. Return the ids of the
        uploads, which `operations.datasets_create` takes."""
        total, before, ids = sum(path.stat().st_size for path in paths), 0, []
        for path in paths:
            about = {"name": path.name, "bytes": path.stat().st_size}
            about["fingerprint"] = fingerprint(path)
            upload = self._client.send(operations.uploads_create(body=about))
            with path.open("rb") as file:
                while upload.received < upload.bytes:
                    file.seek(upload.received)
                    part = file.read(PART_BYTES)
                    if not part:
                        raise ValueError(f"{path} has become shorter while it was sent")
                    upload = self._client.send(
                        operations.uploads_put(
                            upload=upload.id, from_byte=upload.received, content=part
                        )
                    )
                    if progress is not None:
                        progress(before + upload.received, total)
            before += upload.bytes
            ids.append(upload.id)
        return ids

    def get(self, dataset: str) -> DatasetRecord:
        """Return a dataset by its name or id."""
        return self._client.send(operations.datasets_get(dataset=dataset))

    def list(self) -> Iterator[DatasetRecord]:
        """Yield the datasets, newest first."""
        for page in self._client.pages(operations.datasets_list):
            for record in page.datasets:
                yield record

    def delete(self, dataset: str) -> None:
        """Delete a dataset that no run needs."""
        self._client.send(operations.datasets_delete(dataset=dataset))
