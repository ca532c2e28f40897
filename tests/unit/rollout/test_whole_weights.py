"""A checkpoint's weights become one file in the published type, rounded as torch rounds."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollout.policy.whole_weights import is_whole, write_whole

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("trained", TYPES)
def test_weights_in_parts_become_one_file_of_the_published_type(
    tmp_path: Path, trained: str, dtype: str
) -> None:
    special = torch.tensor([0.0, -0.0, 1.00390625, 1.01171875, 3e38, 1e-40, torch.inf, torch.nan])
    parts = [
        {"a": torch.randn(33, 7).to(TYPES[trained]), "steps": torch.tensor([1, 2])},
        {"b": special.to(TYPES[trained]), "empty": torch.empty(0, 3, dtype=TYPES[trained])},
    ]
    files = [tmp_path / f"part-{number}.safetensors" for number in range(len(parts))]
    for part, file in zip(parts, files, strict=True):
        save_file(part, file)
    written = tmp_path / "whole.safetensors"
    write_whole(files, dtype, written)
    loaded = load_file(written)
    expected = {
        name: tensor.to(TYPES[dtype]) if tensor.is_floating_point() else tensor
        for name, tensor in (parts[0] | parts[1]).items()
    }
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0, equal_nan=True)
    assert is_whole([written], dtype)
    assert not is_whole(files, dtype)
    assert is_whole(files[:1], dtype) == (trained == dtype)


def test_weights_of_an_unknown_type_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match="weights of type int8 cannot be served"):
        write_whole([file], "int8", tmp_path / "whole.safetensors")
