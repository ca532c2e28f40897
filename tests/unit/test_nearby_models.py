"""A mistyped model path and the folder that it probably means."""

from pathlib import Path

import pytest

from headrace.nearby_models import nearby


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("base/models/SmolLM2-135M", "base/Qwen/Qwen3-4B", "hub/models--Qwen--Qwen3-8B"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").touch()
    (tmp_path / "base" / "secret-folder").mkdir()
    return tmp_path / "base"


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("models/SmolLM2-135", "models/SmolLM2-135M"),
        ("modles/SmolLM2-135M", "models/SmolLM2-135M"),
        ("./models/smolLM2-135M/", "models/SmolLM2-135M"),
        ("Qwen/Qwen3-4b", "Qwen/Qwen3-4B"),
        ("HuggingFaceTB/SmolLM2-135M", None),
        ("Qwen/Qwen3-8B", None),
        ("secret-folde", None),
        ("~nobody/m", None),
        ("no\0hub/name", None),
    ],
)
def test_the_most_similar_model_folder_is_found(base: Path, path: str, near: str | None) -> None:
    assert nearby(path, base) == near


def test_a_mistyped_absolute_path_is_compared_with_its_neighbours(base: Path) -> None:
    assert nearby(f"{base}/models/SmolLM-135M", Path("/")) == f"{base}/models/SmolLM2-135M"
    assert nearby(f"{base}/nowhere/SmolLM-135M", Path("/")) is None
