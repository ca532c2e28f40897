"""Where the caches of libraries are."""

from pathlib import Path

import pytest

from services.caches import FOLDERS, cache_variables


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
