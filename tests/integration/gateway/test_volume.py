"""The data volume from a host without it: fetched from the gateway once, again where damaged."""

from pathlib import Path

import pytest

from services.volume import DamagedFile, Volume, checksum
from tests.integration.gateway.servers import GatewayProcess

NAME = "runs/far/weights/v000001-ab.safetensors"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def original(gateway: GatewayProcess) -> Path:
    path = gateway.data / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CONTENT)
    return path


async def test_a_file_is_fetched_once(
    gateway: GatewayProcess, original: Path, tmp_path: Path
) -> None:
    volume = Volume(tmp_path, gateway.url)
    sum_ = checksum(original)

    path = await volume.fetch(NAME, len(CONTENT), sum_)
    original.unlink()

    assert path.read_bytes() == CONTENT
    assert await volume.fetch(NAME, len(CONTENT), sum_) == path


async def test_a_damaged_copy_is_fetched_again(
    gateway: GatewayProcess, original: Path, tmp_path: Path
) -> None:
    volume = Volume(tmp_path, gateway.url)
    path = await volume.fetch(NAME)
    path.write_bytes(CONTENT[:-1] + b"?")

    await volume.fetch(NAME, len(CONTENT), checksum(original))

    assert path.read_bytes() == CONTENT


async def test_what_is_damaged_at_its_source_too_is_refused(
    gateway: GatewayProcess, original: Path, tmp_path: Path
) -> None:
    volume = Volume(tmp_path, gateway.url)
    wanted = checksum(original)
    await volume.fetch(NAME)
    for copy in (original, tmp_path / NAME):
        copy.write_bytes(CONTENT[:-1] + b"?")

    with pytest.raises(DamagedFile, match="its manifest says"):
        await volume.fetch(NAME, len(CONTENT), wanted)


async def test_a_damaged_copy_without_a_gateway_is_refused_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")

    with pytest.raises(DamagedFile, match="has 4 bytes, its manifest says 10240"):
        await Volume(tmp_path).fetch(NAME, len(CONTENT))
