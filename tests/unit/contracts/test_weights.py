"""The weight manifest as it stands in Redis."""

import pytest

from services.contracts.schema import SchemaMismatch
from services.contracts.weights import WeightFile, WeightManifest, decode_manifest

GOLDEN = (
    b'{"run":"r","version":7,"lineage":"9f3a1c","kind":"full",'
    b'"files":[{"name":"runs/r/weights/v7.safetensors","bytes":12,"xxh3":"ab"}],'
    b'"tensors":3,"model":"runs/r/model","base":null,"created":1.5,"schema":1}'
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
    newer = GOLDEN.replace(b'"schema":1', b'"schema":2').replace(b'"kind":"full"', b'"kind":"new"')
    with pytest.raises(SchemaMismatch, match="weight manifest has schema 2, this process reads 1"):
        decode_manifest(newer)


def test_a_manifest_with_missing_bytes_is_refused() -> None:
    for length in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="weight manifest is damaged") as refused:
            decode_manifest(GOLDEN[:length])
        assert refused.type is ValueError
