"""Where the caches of libraries are."""

import os
from pathlib import Path

import pytest

from services.caches import FOLDERS, cache_variables, place_caches


def test_every_cache_is_below_the_data_folder_and_models_of_the_hub_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = cache_variables(tmp_path, {})

    assert found.pop("HF_HOME") == "/home/me/.cache/huggingface"
    assert found.pop("XDG_CACHE_HOME") == str(tmp_path / "cache")
    assert found.keys() == FOLDERS.keys()
    assert {str(Path(place).parent) for place in found.values()} == {str(tmp_path / "cache")}


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
