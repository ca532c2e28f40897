"""`/v1/uploads`: a file in parts whose upload another request deletes meanwhile."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.datasets.partial_uploads import PartialUpload, UploadDescription, begin_upload
from services.gateway.routes.datasets.uploads import PIECE, complete_upload, delete, put, show
from services.http import Problem

ID = "a" * 32


@pytest.fixture
def upload(tmp_path: Path) -> PartialUpload:
    return begin_upload(tmp_path, UploadDescription(ID, "rows.jsonl", 2 * PIECE))


async def test_a_part_of_an_upload_that_is_deleted_meanwhile_is_refused_as_unknown(
    upload: PartialUpload, tmp_path: Path
) -> None:
    deps: Any = SimpleNamespace(volume=SimpleNamespace(root=tmp_path))

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(PIECE)
        await delete(upload)
        yield bytes(PIECE)

    request: Any = SimpleNamespace(stream=pieces)
    for call in (put(deps, request, upload, 0), show(upload), complete_upload(deps, ID)):
        with pytest.raises(Problem, match=f"there is no upload '{ID}': .* was deleted") as refused:
            await call
        assert refused.value.status == HTTPStatus.NOT_FOUND
