"""Exports in transformers 4: the same tokens and the same logits as the policy that was trained.

Each version is installed into a folder of its own, without its dependencies: torch and the rest are
those of this environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.saving import as_in_a_folder, on_host, save_description, weight_tensors
from learner.model.loading.scratch import make_model, train_merges
from services.contracts.config.model import BPETokenizer
from tests.unit.learner.policies import TINY, tiny_model
from tests.unit.learner.test_kept_files import hub_folder, loaded_from

VERSIONS = {
    "4.45.2": ("tokenizers==0.20.3", "huggingface_hub==0.26.5"),
    "4.51.3": ("tokenizers==0.21.4", "huggingface_hub==0.30.2"),
    "4.57.6": ("tokenizers==0.22.1", "huggingface_hub==0.36.0"),
}
TOO_NEW = {"4.45.2": {"mixture", "qwen3", "qwen3_moe", "gemma3_text", "olmo2"}}
"""Architectures that a version does not have."""
SIZES = {
    "vocab_size": 22,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SCALED = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {**SCALED, "rope_theta": 5e4}},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "gemma2": {},
    "gemma3_text": {},
    "gpt_neox": {},
    "olmo2": {},
    "phi3": {},
    "mixtral": {"num_local_experts": 4},
}
TOKENS = torch.arange(1, 15)[None]
LOOK = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for path in sys.argv[1:]:
    load = AutoModelForCausalLM.from_pretrained
    model = load(path, torch_dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(path)
    logits = model(torch.arange(1, 15)[None]).logits[0, -1].tolist()
    said = tokenizer("3+4=").input_ids, tokenizer.eos_token, tokenizer.chat_template
    print(json.dumps([logits, said]))
"""


def exported(folder: Path, loaded: LoadedModel) -> list[Any]:
    """Write a trained model as a checkpoint has it. Return its logits and tokens."""
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        logits = loaded.model.eval()(TOKENS, use_cache=False).logits[0, -1].tolist()
    save_description(loaded, folder)
    weights = as_in_a_folder(loaded.model, on_host(weight_tensors(loaded.model)))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = loaded.tokenizer
    said = tokenizer("3+4=").input_ids, tokenizer.eos_token, tokenizer.chat_template
    return [logits, json.loads(json.dumps(said))]


def family(name: str) -> LoadedModel:
    """A model of another architecture, whose files transformers 5 has written."""
    config = AutoConfig.for_model(name, **{**SIZES, **FAMILIES[name]})
    rope = config.rope_parameters
    for part in [rope] if "rope_theta" in rope else rope.values():
        part["rope_theta"] = part["rope_theta"] * 3
    model = AutoModelForCausalLM.from_config(config).float()
    return LoadedModel(model, tiny_model().tokenizer, torch.float32)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[Any]]:
    """The logits and tokens of each trained model, by its folder."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("exports")
    hub_folder(root / "source")
    pairs = BPETokenizer(type="bpe", vocabulary=512)
    merges = train_merges(pairs, ["What is 3+4? The answer is 7."] * 20)
    models = {
        "hub": loaded_from(root / "source"),
        "characters": tiny_model(),
        "pairs": make_model(TINY.model_copy(update={"tokenizer": pairs}), 0, merges=merges),
        "mixture": make_model(TINY.model_copy(update={"experts": 4, "experts_per_token": 2}), 0),
        **{name: family(name) for name in FAMILIES},
    }
    return {root / name: exported(root / name, loaded) for name, loaded in models.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_transformers_reads_the_model_that_was_trained(
    version: str, exports: dict[Path, list[Any]], tmp_path: Path
) -> None:
    packages = (f"transformers=={version}", *VERSIONS[version])
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path), *packages], check=True)
    known = [path for path in exports if path.name not in TOO_NEW.get(version, ())]

    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", LOOK, *map(str, known)]
    done = subprocess.run(
        command, check=True, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )

    for path, line in zip(known, done.stdout.splitlines(), strict=True):
        (logits, said), (expected, also) = json.loads(line), exports[path]
        assert said == also, path.name
        # Rounding alone: other attention kernels.
        assert logits == pytest.approx(expected, abs=2e-6), path.name
