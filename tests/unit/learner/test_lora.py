"""LoRA: what adapters compute, that only they are trained, published and kept, and that a resumed
run uses the same base."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from learner.assembly import RunStart, check_base
from learner.checkpoints.captured import capture
from learner.checkpoints.checkpoint_reader import load_optimizer, verify
from learner.checkpoints.checkpoint_writer import write_checkpoint
from learner.distributed import Ranks
from learner.errors import RunCannotGoOn, UnusableModel
from learner.model.loading.lora import (
    BaseLogprobs,
    PolicyFolders,
    adapter_tensors,
    add_adapters,
    base_of,
    base_on_host,
    check_files,
    load_policy,
    trained_on_host,
)
from learner.model.loading.model_loader import LoadedModel, load_critic, load_model
from learner.model.loading.saving import save_description
from learner.model.passes.logprobs import PackedRow, TokenLogprobs, packed_row
from learner.optim.optimizers import Optimizers
from learner.publishing.model_folder import export_description
from learner.publishing.versions import host_weights
from learner.slices import RankPart
from learner.tools.export import main as export
from rollout.vllm.process.options import fingerprint
from services.contracts.config import RLConfig
from services.contracts.config.lora import LoRA
from services.contracts.config.model import PretrainedModel
from services.contracts.config.optimizer import AdamW
from services.contracts.config.vllm import VLLM
from services.volume import DamagedFile
from tests.unit.learner.policies import state_of, tiny_model
from tests.unit.learner.test_checkpoint import STATE, nothing, step

RANK4 = LoRA(rank=4, alpha=8)
LAYERS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
# 7 layers in each of 2 blocks: four of 32 × 32, and three of 32 × 48.
NUMBERS = 2 * 4 * (4 * (32 + 32) + 3 * (32 + 48))


def adapted(lora: LoRA = RANK4, seed: int = 0, base: int = 0) -> LoadedModel:
    loaded = tiny_model(base)
    add_adapters(loaded, lora, seed)
    return loaded


def randomised(loaded: LoadedModel) -> LoadedModel:
    """The model with adapters that have an effect."""
    generator = torch.Generator().manual_seed(7)
    for tensor in adapter_tensors(loaded.model).values():
        tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
    return loaded


def a_row() -> PackedRow:
    tokens = [torch.tensor([1, 5, 4, 14, 6]), torch.tensor([1, 9, 8])]
    return packed_row(tokens, [torch.arange(len(t)) > 0 for t in tokens])


def logprobs(loaded: LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = TokenLogprobs(loaded.model)(a_row())[0]
    return found


def test_an_adapter_adds_alpha_by_rank_times_b_a_to_its_layer() -> None:
    loaded = randomised(adapted(LoRA(rank=4, alpha=6, targets=["q_proj", "down_proj"])))
    loaded.model.double()
    whole = tiny_model()
    whole.model.double()
    adapters = adapter_tensors(loaded.model)
    for name in [
        f"model.layers.{i}.{end}" for i in (0, 1) for end in ("self_attn.q_proj", "mlp.down_proj")
    ]:
        a, b = (adapters.pop(f"base_model.model.{name}.lora_{x}.weight") for x in "AB")
        whole.model.get_parameter(f"{name}.weight").data += 1.5 * b @ a

    assert adapters == {}
    assert torch.allclose(logprobs(loaded), logprobs(whole), rtol=0, atol=1e-12)
    assert not torch.allclose(logprobs(loaded), logprobs_of_tiny(), rtol=0, atol=1e-3)


def logprobs_of_tiny() -> torch.Tensor:
    whole = tiny_model()
    whole.model.double()
    return logprobs(whole)


def test_a_new_adapter_does_nothing_and_is_drawn_from_the_seed() -> None:
    loaded = adapted(seed=3)
    assert loaded.lora is not None
    assert loaded.lora.targets == LAYERS
    assert torch.equal(logprobs(loaded), logprobs(tiny_model()))
    torch.manual_seed(99)
    again, other = adapter_tensors(adapted(seed=3).model), adapter_tensors(adapted(seed=4).model)
    for name, tensor in adapter_tensors(loaded.model).items():
        assert torch.equal(tensor, again[name])
        assert torch.equal(tensor, other[name]) == name.endswith("lora_B.weight")


def test_only_the_adapters_are_trained() -> None:
    loaded = adapted()
    before = base_on_host(loaded)
    optimizers = Optimizers(loaded.model, AdamW(lr=1e-2, weight_decay=0.1))
    step(loaded, optimizers, 1)
    step(loaded, optimizers, 2)

    assert {name for name in optimizers.names.values() if ".lora_" not in name} == set()
    assert all(p.grad is None for p in loaded.model.parameters() if not p.requires_grad)
    assert sum(p.numel() for p in optimizers.names) == NUMBERS
    assert all(tensor.any() for tensor in adapter_tensors(loaded.model).values())
    whole = tiny_model().model.state_dict()
    assert before.keys() == whole.keys()
    for name, tensor in base_on_host(loaded).items():
        assert torch.equal(tensor, before[name])
        assert torch.equal(tensor, whole[name])


def test_a_frozen_head_gets_no_gradient_and_what_is_before_it_the_same() -> None:
    loaded, frozen = tiny_model(), tiny_model()
    frozen.model.lm_head.requires_grad_(False)
    for one in (loaded, frozen):
        found, entropy = TokenLogprobs(one.model)(a_row())
        (found.sum() + entropy.sum()).backward()
    assert frozen.model.lm_head.weight.grad is None
    ours, theirs = (m.model.model.embed_tokens.weight.grad for m in (loaded, frozen))
    assert torch.equal(ours, theirs)


def test_a_published_version_is_the_adapters_in_the_published_type_and_no_more() -> None:
    loaded = tiny_model()
    loaded.publish_dtype = torch.bfloat16
    add_adapters(loaded, RANK4, 0)
    published = host_weights(loaded, 1, 0.0)

    assert published.kind == "adapter"
    assert len(published.tensors) == 2 * 7 * 2
    assert sum(t.numel() * t.element_size() for t in published.tensors.values()) == 2 * NUMBERS
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"
    assert published.tensors[name].shape == (4, 32)
    # Trained weights keep their precision. Frozen weights have the workers' type.
    assert {t.dtype for t in adapter_tensors(loaded.model).values()} == {torch.float32}
    assert {t.dtype for t in base_on_host(loaded).values()} == {torch.bfloat16}


def test_the_reference_is_the_model_without_adapters() -> None:
    loaded = randomised(adapted())
    policy = TokenLogprobs(loaded.model)
    with torch.no_grad():
        found, _ = BaseLogprobs(policy)(a_row())

    assert torch.equal(found, logprobs(tiny_model()))
    assert not torch.equal(found, logprobs(loaded))
    assert sum(p.numel() for p in loaded.model.parameters() if p.requires_grad) == NUMBERS


@pytest.mark.parametrize("target", ["q_porj", "lm_head", "embed_tokens", "norm"])
def test_an_unknown_target_is_refused_with_the_known_ones(target: str) -> None:
    with pytest.raises(UnusableModel) as refused:
        adapted(LoRA(targets=["q_proj", target]))
    assert f"model.lora.targets: {target!r} is no linear layer" in str(refused.value)
    assert f"it has {', '.join(LAYERS)}" in str(refused.value)


def checkpoint(data: Path, loaded: LoadedModel, optimizers: Optimizers) -> Path:
    export_description(loaded, data / "runs/r1/model")
    captured = capture(state_of(loaded, optimizers, progress=STATE))
    return write_checkpoint(data / "runs/r1/checkpoints", captured, nothing)


def policy_from(data: Path, start: str, folder: Path | None, lora: LoRA = RANK4) -> LoadedModel:
    config, own = PretrainedModel(path="any", lora=lora), data / "runs/r1/model"
    folders = PolicyFolders(start, own, folder)
    check_files(Path(base_of(config, folders)))
    return load_policy(config, folders, seed=5)


def test_a_mixture_of_experts_takes_no_adapters() -> None:
    mixture = tiny_model()
    mixture.model.config.text_config = Qwen3MoeConfig(num_experts=4)
    with pytest.raises(UnusableModel, match=r"mixture of experts, .* leave model\.lora out"):
        add_adapters(mixture, RANK4, 0)


def test_training_goes_on_exactly_where_the_checkpoint_was_made(tmp_path: Path) -> None:
    loaded = adapted()
    optimizers = Optimizers(loaded.model, AdamW(lr=1e-2))
    step(loaded, optimizers, 1)
    folder = checkpoint(tmp_path, loaded, optimizers)
    step(loaded, optimizers, 2)

    # The folder that the run was made from is gone.
    again = policy_from(tmp_path, "/gone", folder)
    assert verify(folder) == STATE
    again_optimizers = Optimizers(again.model, AdamW(lr=1e-2))
    load_optimizer(folder, again_optimizers)
    step(again, again_optimizers, 2)

    expected = trained_on_host(loaded)
    assert expected.keys() == trained_on_host(again).keys()
    for name, tensor in trained_on_host(again).items():
        assert torch.equal(tensor, expected[name]), name
    for name, tensor in base_on_host(again).items():
        assert torch.equal(tensor, base_on_host(loaded)[name]), name


def test_a_checkpoint_is_an_adapter_that_peft_loads_and_headrace_merges(tmp_path: Path) -> None:
    loaded = randomised(adapted())
    folder = checkpoint(tmp_path, loaded, Optimizers(loaded.model, AdamW()))
    weights = [path.name for path in folder.glob("*.safetensors")]
    assert weights == ["adapter_model.safetensors"]

    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    ids = torch.tensor([[1, 5, 4, 14, 6, 18]])
    merged = load_model(str(folder), PretrainedModel(path=str(folder)))
    valued = load_critic(str(folder), PretrainedModel(path=str(folder)), merged.model)
    with torch.no_grad():
        expected = loaded.model(ids).logits
        assert torch.allclose(theirs(ids).logits, expected, atol=1e-5)
        assert torch.allclose(merged.model(ids).logits, expected, atol=1e-5)
    assert merged.lora is None
    assert merged.tokenizer("1+2").input_ids == loaded.tokenizer("1+2").input_ids
    whole = merged.model.state_dict()
    assert whole.keys() == tiny_model().model.state_dict().keys()
    layer = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(valued.state_dict()[layer], whole[layer])


def test_a_data_volume_that_has_moved_takes_its_bases_with_it(tmp_path: Path) -> None:
    loaded = randomised(adapted())
    folder = checkpoint(tmp_path / "here", loaded, Optimizers(loaded.model, AdamW()))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = tmp_path / "there" / folder.relative_to(tmp_path / "here")
    merged = load_model(str(moved), PretrainedModel(path=str(moved)))
    assert torch.allclose(logprobs(merged), logprobs(loaded), atol=1e-5)


def test_a_checkpoint_is_exported_as_one_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = tiny_model()
    loaded.publish_dtype = torch.bfloat16
    add_adapters(loaded, RANK4, 0)
    randomised(loaded)
    folder = checkpoint(tmp_path, loaded, Optimizers(loaded.model, AdamW()))

    assert export([str(folder), str(tmp_path / "out")]) == 0

    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1, "vLLM may run as another user"
    saved = load_file(tmp_path / "out/model.safetensors")
    adapters = adapter_tensors(loaded.model)
    for name, tensor in base_on_host(loaded).items():
        a = adapters.get(f"base_model.model.{name.replace('.weight', '.lora_A.weight')}")
        b = adapters.get(f"base_model.model.{name.replace('.weight', '.lora_B.weight')}")
        expected = tensor.float() + (2.0 * b @ a if a is not None and b is not None else 0.0)
        assert torch.allclose(saved[name].float(), expected, rtol=2**-8, atol=1e-6), name
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "LlamaForCausalLM"

    (tmp_path / "runs/r1/model/model.safetensors").unlink()
    assert export([str(folder), str(tmp_path / "again")]) == 2
    assert "no .safetensors file" in capsys.readouterr().err


def whole_folder(path: Path, seed: int) -> str:
    loaded = tiny_model(seed)
    save_description(loaded, path)
    loaded.model.save_pretrained(path)
    return str(path)


def test_a_run_stays_on_the_base_that_it_began_with(tmp_path: Path) -> None:
    first = policy_from(tmp_path, whole_folder(tmp_path / "source", seed=1), None)
    export_description(first, tmp_path / "runs/r1/model")
    # The run died before its first checkpoint, and another party has put other weights there.
    other = whole_folder(tmp_path / "other", seed=2)
    again = policy_from(tmp_path, other, None)
    assert torch.equal(logprobs(again), logprobs(first))

    path = tmp_path / "runs/r1/model/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DamagedFile, match="has checksum"):
        policy_from(tmp_path, other, None)
    # One of several ranks reads it.
    noticed = []
    for number in range(3):
        try:
            check_files(path.parent, RankPart(number, 3))
        except DamagedFile:
            noticed.append(number)
    assert len(noticed) == 1
    config = RLConfig.model_validate(
        {"data": {"dataset": "d"}, "rewards": [{"verifier": "exact"}]}
        | {"model": {"path": other, "lora": {"rank": 4}}}
    )
    begun = RunStart(config, PolicyFolders(other, path.parent), STATE)
    with pytest.raises(DamagedFile, match="has checksum"):
        check_base(begun, Ranks(0, 1, torch.device("cpu")))
    path.unlink()
    with pytest.raises(RunCannotGoOn, match=r"lacks model\.safetensors"):
        policy_from(tmp_path, other, None)


def test_a_run_that_goes_on_cannot_change_the_shape_of_its_adapters(tmp_path: Path) -> None:
    loaded = adapted()
    folder = checkpoint(tmp_path, loaded, Optimizers(loaded.model, AdamW()))
    for lora in (LoRA(rank=8), LoRA(rank=4, targets=["q_proj"])):
        with pytest.raises(RunCannotGoOn, match="its rank and targets cannot change"):
            policy_from(tmp_path, "/gone", folder, lora)


def test_runs_share_a_server_if_base_and_shape_of_the_adapters_agree(tmp_path: Path) -> None:
    def served(name: str, loaded: LoadedModel) -> str:
        export_description(loaded, tmp_path / name)
        return fingerprint(tmp_path / name, VLLM(), "float32")

    one = served("a", adapted(seed=1))
    assert one == served("b", adapted(seed=2))
    assert one != served("c", adapted(base=1))
    assert one != served("d", adapted(LoRA(rank=4, alpha=9)))
    assert one != served("e", adapted(LoRA(rank=4, alpha=8, targets=["q_proj"])))
    assert one != served("f", tiny_model())
