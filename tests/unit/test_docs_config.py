"""docs/config.md has exactly the text of the models."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from deploy.config_reference import reference
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.parsing.type_tags import fields_of, models_of

FILE = Path(__file__).resolve().parents[2] / "docs" / "config.md"


def test_the_file_is_what_the_generator_prints() -> None:
    assert FILE.read_text() == reference(), (
        "a config model or a setting has changed; run: "
        ".venv/bin/python -m deploy.config_reference > docs/config.md"
    )


@pytest.mark.parametrize("root", [RLConfig, SFTConfig])
def test_every_key_of_a_run_config_is_there(root: type[BaseModel]) -> None:
    text = FILE.read_text()

    missing = [key for key in keys(root) if f"`{key}`" not in text and f"`{key}[]" not in text]

    assert missing == []


def keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted paths of all that a user may write, but for tags, which have no sentence."""
    found = []
    for name, field in fields_of(model).items():
        if field.description is None:
            continue
        listed = "[]" if str(field.annotation).startswith("list[") else ""
        found.append(prefix + name)
        for inner in models_of(field.annotation):
            found += keys(inner, f"{prefix}{name}{listed}.")
    return found
