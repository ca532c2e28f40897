"""The weight manifest as it stands in Redis."""

import pytest
from msgspec import json, structs

from services.contracts.schema import SchemaMismatch
from services.contracts.weights import WeightFile, WeightManifest, decode_manifest

GOLDEN = (
    b'{"run":"r","version":7,"lineage":"9f3a1c","kind":"full",'
    b'"files":[{"name":"runs/r/weights/v7.safetensors","bytes":12,"xxh3":"ab"}],'
    b'"tensors":3,"model":"runs/r/model","created":1.5,"schema":2}'
)
MANIFEST = WeightManifest(
    run="r",
    version=7,
    lineage="9f3a1c",
    kind="full",
    files=[WeightFile("runs/r/weights/v7.safetensors", 12, "ab")],
    tensors=3,
    model="runs/r/model",
    created=1.5,
)


def test_a_manifest_is_read_from_fixed_bytes() -> None:
    assert decode_manifest(GOLDEN) == MANIFEST
    assert MANIFEST.tag == "9f3a1c:7"


def test_another_version_s_manifest_is_refused_by_name() -> None:
    newer = GOLDEN.replace(b'"schema":2', b'"schema":3').replace(b'"kind":"full"', b'"kind":"new"')
    with pytest.raises(SchemaMismatch, match="weight manifest has schema 3, this process reads 2"):
        decode_manifest(newer)


def test_a_manifest_with_missing_bytes_is_refused() -> None:
    for length in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="weight manifest is damaged") as refused:
            decode_manifest(GOLDEN[:length])
        assert refused.type is ValueError


def delta(version: int, files: int, kind: str = "delta") -> WeightManifest:
    listed = [WeightFile(f"f{number}", 1, "ab") for number in range(files)]
    return structs.replace(MANIFEST, version=version, kind=kind, files=listed)


@pytest.mark.parametrize(
    ("kind", "files"), [("full", 0), ("full", 2), ("adapter", 2), ("delta", 1), ("delta", 9)]
)
def test_a_manifest_with_too_few_or_too_many_files_is_refused(kind: str, files: int) -> None:
    with pytest.raises(ValueError, match=f"version 9f3a1c:7 of kind {kind} has {files} files"):
        decode_manifest(json.encode(delta(7, files, kind)))
