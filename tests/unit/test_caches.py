"""Where the caches of libraries are."""

import hashlib
import os
from pathlib import Path

import pytest
from transformers.convert_slow_tokenizer import TikTokenConverter

from services.caches import FOLDERS, cache_variables, place_caches


def test_every_cache_is_below_the_data_folder_and_models_of_the_hub_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = cache_variables(tmp_path, {})

    assert found.pop("HF_HOME") == "/home/me/.cache/huggingface"
    assert found.pop("XDG_CACHE_HOME") == str(tmp_path / "cache")
    assert found.pop("TIKTOKEN_CACHE_DIR") == ""
    assert found.keys() == FOLDERS.keys()
    assert {str(Path(place).parent) for place in found.values()} == {str(tmp_path / "cache")}


def test_a_vocabulary_is_read_from_its_own_file_and_from_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tiktoken takes what lies in the shared /tmp under the digest of the file's path."""
    file = tmp_path / "tokenizer.model"
    file.write_text("YQ== 0\n")
    taken = tmp_path / "data-gym-cache" / hashlib.sha1(str(file).encode()).hexdigest()
    taken.parent.mkdir()
    taken.write_text("Yg== 0\n")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in cache_variables(tmp_path, {}).items():
        monkeypatch.setenv(name, value)

    assert TikTokenConverter.load_tiktoken_bpe(str(file)) == {b"a": 0}


@pytest.mark.parametrize(
    ("package", "variable"),
    [
        ("apache-tvm-ffi", "TVM_FFI_CACHE_DIR"),
        ("flashinfer-python", "FLASHINFER_WORKSPACE_BASE"),
        ("flashinfer-python", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"),
        ("nvidia-cutlass-dsl", "CUTE_DSL_CACHE_DIR"),
        ("quack-kernels", "QUACK_CACHE_DIR"),
        ("triton", "TRITON_CACHE_DIR"),
    ],
)
def test_each_compiler_of_kernels_that_a_gpu_needs_has_a_closed_cache(
    package: str, variable: str
) -> None:
    """By default most of them execute what lies in /tmp/USER."""
    lock = (Path(__file__).parents[2] / "deploy/locks/gpu.txt").read_text()
    assert f"\n{package}==" in lock
    assert variable in FOLDERS


def test_the_operators_own_places_stay() -> None:
    own = {"XDG_CACHE_HOME": "/cache", "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor"}
    found = cache_variables(Path("/data"), own)

    assert found["TORCHINDUCTOR_CACHE_DIR"] == "/cache/inductor"
    assert found["TRITON_CACHE_DIR"] == "/cache/triton"
    assert found["HF_HOME"] == "/cache/huggingface"
    # A child has the variables of its parent.
    assert cache_variables(Path("/other"), found) == found


def test_a_cache_folder_that_is_open_to_others_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {})
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    assert place_caches(tmp_path) == ""
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    assert f"another user can write to {tmp_path / 'cache'}" in place_caches(tmp_path)
