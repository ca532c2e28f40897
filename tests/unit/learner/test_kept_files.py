"""A checkpoint is the model that it began as: its own files, plus the run's changes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from learner.errors import UnusableModel
from learner.model.loading.kept_files import CHANGED, marked_as_changed
from learner.model.loading.model_loader import LoadedModel, load_model
from learner.model.loading.saving import (
    save_beside_adapter,
    save_description,
    weight_tensors,
)
from learner.model.loading.scratch import make_model
from learner.model.loading.spellings import (
    changed_config,
    config_for_all,
    section_of,
    tokenizer_config_for_all,
    with_dtype_named,
)
from learner.tools.rounding import main as round_weights
from services.contracts.config.model import PretrainedModel
from tests.unit.learner.policies import TINY, tiny_model

CARD = "---\nlicense: apache-2.0\n---\n# A model\n"
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 22,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "model_type": "qwen2",
    "rope_theta": 1_000_000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "a_key_that_nobody_knows": [1],
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""As transformers 4.51 wrote it."""


def hub_folder(folder: Path) -> dict[str, bytes]:
    """Make a folder in the form of the hub, and return its files except the weights."""
    save_description(tiny_model(), folder)
    said = json.loads((folder / "tokenizer_config.json").read_text())
    written: dict[str, Any] = {
        "config.json": CONFIG,
        "tokenizer_config.json": {**said, "additional_special_tokens": ["<eos>"], "unknown": 1},
        "generation_config.json": {"eos_token_id": [2, 1], "temperature": 0.7, "do_sample": True},
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "LICENSE").write_text("as is")
    (folder / "README.md").write_text(CARD)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    # Neither describes the model.
    (folder / "trainer_state.json").write_text("{}")
    (folder / "modeling_x.py").write_text("")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**CONFIG))
    save_file(weight_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    return files


def loaded_from(folder: Path) -> LoadedModel:
    return load_model(str(folder), PretrainedModel(path=str(folder)))


def test_a_checkpoint_has_its_sources_files_and_other_types_alone(tmp_path: Path) -> None:
    source = hub_folder(tmp_path / "hub")
    loaded = loaded_from(tmp_path / "hub")
    loaded.publish_dtype = torch.float32
    save_description(loaded, tmp_path / "out")

    out = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert out.keys() == source.keys()
    assert json.loads(out["config.json"]) == {
        **CONFIG,
        "torch_dtype": "float32",
        "dtype": "float32",
    }
    assert out["README.md"].decode() == CARD.replace("# A", CHANGED + "# A")
    changed = {name for name in out if out[name] != source[name]}
    assert changed == {"config.json", "README.md"}
    # A run on this one's checkpoint, and a run that is resumed, change nothing more.
    save_file(weight_tensors(loaded.model), tmp_path / "out/model.safetensors")
    save_description(loaded_from(tmp_path / "out"), tmp_path / "again")
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == out


def test_a_runs_changes_of_tokens_and_template_are_in_its_checkpoint(tmp_path: Path) -> None:
    hub_folder(tmp_path / "hub")
    loaded = loaded_from(tmp_path / "hub")
    assert loaded.model.generation_config is not None
    loaded.model.generation_config.eos_token_id = [2, 1, 3]
    loaded.model.config.rms_norm_eps = 1e-5
    loaded.tokenizer.chat_template = "{{ messages }}"
    save_description(loaded, tmp_path / "out")
    said = {
        name: json.loads((tmp_path / "out" / f"{name}.json").read_text())
        for name in ("config", "generation_config", "tokenizer_config")
    }
    assert said["generation_config"]["eos_token_id"] == [2, 1, 3]
    assert said["generation_config"]["temperature"] == 0.7
    assert (said["config"]["rms_norm_eps"], said["config"]["rope_theta"]) == (1e-5, 1e6)
    assert said["tokenizer_config"]["chat_template"] == "{{ messages }}"
    assert (tmp_path / "out/LICENSE").is_file()


@pytest.mark.parametrize("experts", [0, 4])
def test_a_model_from_scratch_is_written_for_old_and_new_transformers(
    tmp_path: Path, experts: int
) -> None:
    mixture = {"experts": experts, "experts_per_token": 2} if experts else {}
    save_description(make_model(TINY.model_copy(update=mixture), 0), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10_000.0
    assert (config["use_cache"], config["rope_scaling"]) == (True, None)
    assert config["dtype"] == config["torch_dtype"]
    assert config.get("num_experts", 0) == config.get("num_local_experts", 0) == experts
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "extra_special_tokens" not in tokenizer
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 2


def test_an_adapters_folder_has_the_tokenizer_and_the_licence_of_its_base(tmp_path: Path) -> None:
    hub_folder(tmp_path / "hub")
    save_beside_adapter(loaded_from(tmp_path / "hub"), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "LICENSE",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    }


def test_a_config_that_contradicts_its_weights_is_refused_or_warned_of(
    tmp_path: Path,
) -> None:
    hub_folder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    head = torch.randn(22, 32)
    save_file({**weights, "lm_head.weight": head}, tmp_path / "model.safetensors")
    with pytest.raises(UnusableModel, match=r"another lm_head\.weight: set it to false"):
        loaded_from(tmp_path)
    # GPT-2 ties by default, which its config.json does not say.
    other = GPT2Config(vocab_size=22, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    model = GPT2LMHeadModel(other)
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    said = json.loads((tmp_path / "config.json").read_text())
    said.pop("tie_word_embeddings")
    (tmp_path / "config.json").write_text(json.dumps(said))
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, "lm_head.weight": head}, tmp_path / "model.safetensors")
    with pytest.raises(UnusableModel, match="another output head: set it to false"):
        loaded_from(tmp_path)
    save_file({**weights, "transformer.more": head}, tmp_path / "model.safetensors")
    (warning,) = loaded_from(tmp_path).warnings
    assert "transformer.more, which config.json does not ask for" in warning


def test_only_keys_that_differ_from_what_was_read_are_changed() -> None:
    own = {"a": 1, "unread": 2, "text_config": {"b": 3, "unread": 4}, "gone": 5, "use_cache": True}
    read = {"a": 1, "new": 0, "text_config": {"b": 3, "c": 0}, "gone": 5, "use_cache": True}
    trained = {"a": 1, "new": 9, "text_config": {"b": 8, "c": 0}, "use_cache": False}
    assert changed_config(own, read, trained) == {
        "a": 1,
        "unread": 2,
        "text_config": {"b": 8, "unread": 4},
        "use_cache": True,
        "new": 9,
    }


def test_the_text_part_of_a_composite_config_describes_the_text_model_alone() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 8}
    whole = {"model_type": "gemma3", "text_config": text, "eos_token_id": [1]}
    assert section_of(whole, "gemma3") == whole
    assert section_of(whole, "gemma3_text") == {**text, "eos_token_id": [1]}
    assert section_of(whole, "llama") is None


def test_the_type_of_weights_is_named_in_both_spellings_and_all_sections() -> None:
    named = with_dtype_named({"torch_dtype": "float16", "text_config": {"a": 1}}, "bfloat16")
    both = {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    assert named == {**both, "text_config": {"a": 1, **both}}


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ({"rope_type": "default", "rope_theta": 5.0}, {"rope_theta": 5.0, "rope_scaling": None}),
        (
            {"rope_type": "yarn", "rope_theta": 5.0, "factor": 2.0},
            {"rope_theta": 5.0, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        ),
        (
            {"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 0.5},
            {"rope_theta": 5.0, "rope_scaling": None, "partial_rotary_factor": 0.5},
        ),
        ({"rope_type": "default"}, {}),
    ],
)
def test_positions_are_written_in_the_older_spelling_too(newer: Any, older: Any) -> None:
    config = {"model_type": "llama", "rope_parameters": newer}
    assert config_for_all({"text_config": config}) == {"text_config": {**config, **older}}
    # The older spelling stays as it is.
    assert config_for_all({"rope_theta": 1.0, **config}) == {"rope_theta": 1.0, **config}


def test_local_and_global_positions_have_keys_of_their_own_in_the_older_spelling() -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    both = config_for_all({"model_type": "gemma3_text", "rope_parameters": rope})
    assert (both["rope_theta"], both["rope_local_base_freq"]) == (1e6, 1e4)
    assert both["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}


def test_a_tokenizers_keys_are_those_that_every_transformers_reads() -> None:
    newer = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<a>"]}
    older = {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["<a>"]}
    assert tokenizer_config_for_all(newer) == older
    assert tokenizer_config_for_all(older) == older
    named = {"extra_special_tokens": {"image_token": "<a>"}}
    assert tokenizer_config_for_all(named) == named


def test_a_model_card_says_once_and_first_that_the_weights_changed() -> None:
    for card, expected in ((CARD, CARD.replace("# A", CHANGED + "# A")), ("x", CHANGED + "x")):
        marked = marked_as_changed(card.encode())
        assert marked.decode() == expected
        assert marked_as_changed(marked) == marked


def test_rounded_weights_come_with_their_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model-00001-of-00001.safetensors"
    weights = {"a": torch.tensor([1.0, 1.0 + 2**-9, 1e-10, 0.0]), "n": torch.tensor([70_000])}
    save_file(weights, tmp_path / name)
    (tmp_path / "config.json").write_text('{"dtype": "float32", "torch_dtype": "float32"}')
    index = {
        "metadata": {"total_size": 0},
        "weight_map": dict.fromkeys(weights, name),
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    assert round_weights(["float32", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "float32: every weight kept its value\n"
    assert round_weights(["float16", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said == "float16: 1 of 4 weights were rounded, by at most 0.00%; 1 became 0\n"
    saved = load_file(tmp_path / name)
    assert saved["a"].tolist() == [1.0, 1.0 + 2**-9, 0.0, 0.0]
    assert (saved["a"].dtype, int(saved["n"])) == (torch.float16, 70_000)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "float16"
    written = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    size = (tmp_path / name).stat().st_size
    assert written["metadata"]["total_size"] == size
    assert round_weights(["bfloat16", str(tmp_path)]) == 0
    assert "1 of 4 weights were rounded, by at most 0.19%\n" in capsys.readouterr().out

    save_file({"b": torch.tensor([1e5])}, tmp_path / "model.safetensors")
    assert round_weights(["float16", str(tmp_path)]) == 2
    assert "b has weights up to 1e+05, and float16 ends at 6.55e+04" in capsys.readouterr().err
