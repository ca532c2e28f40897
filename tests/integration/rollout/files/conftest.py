"""A gateway that has the file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.contracts.weights import WeightFile
from services.volume import weight_file
from tests.integration.rollout.files.hosts import CONTENT, KEY, NAME, Host


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path / "gateway", KEY)
    path = host.root / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    async with host.listening():
        yield host


@pytest.fixture
def file(gateway: Host) -> WeightFile:
    return weight_file(gateway.root / NAME, NAME)
