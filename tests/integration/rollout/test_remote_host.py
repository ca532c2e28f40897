"""A rollout worker on a host without the data volume gets the model's files from the gateway."""

from pathlib import Path

import pytest

from learner.models import make_model
from learner.rl import export_description
from rollout.model_folder import fetch_model
from rollout.prompts import load_tokenizer
from services.contracts.config.model import CharacterTokenizer, ScratchModel
from services.launch import Stack, UpOptions
from services.volume import DamagedFile, Volume

NAME = "runs/r/model"


async def test_the_model_folder_arrives_whole(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    config = ScratchModel(source="scratch", tokenizer=CharacterTokenizer(alphabet="0123456789+="))
    loaded = make_model(config, 0)
    export_description(loaded, there / NAME)
    options = UpOptions(data=there, port=0, parts=frozenset({"redis", "gateway"}), redis_port=0)

    with Stack(options) as stack:
        folder = await fetch_model(Volume(here, stack.gateway_url), NAME)

        assert folder == here / NAME
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
            p.name: p.read_bytes() for p in (there / NAME).iterdir()
        }
        assert load_tokenizer(folder).eos_token_id == loaded.tokenizer.eos_token_id

        (there / NAME / "config.json").write_text("{}")
        with pytest.raises(DamagedFile, match=r"config\.json has 2 bytes"):
            await fetch_model(Volume(tmp_path / "third", stack.gateway_url), NAME)
