"""Models from scratch and from folders, rows to imitate, and the content of a published version."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from learner.errors import UnusableModel
from learner.model.loading.model_loader import (
    end_tokens,
    endless,
    load_critic,
    load_model,
    name_ends,
    pass_dtype,
    with_dtype,
)
from learner.model.loading.saving import save_description, weight_tensors
from learner.model.loading.scratch import make_model
from learner.optim.optimizers import Optimizers
from learner.persist.disk_retry import Disk
from learner.publishing.publisher import Publisher
from learner.publishing.versions import host_weights
from services.contracts.config.model import CharacterTokenizer, PretrainedModel
from services.contracts.config.optimizer import MuonAdamW
from services.contracts.config.rollout import Sampling
from services.contracts.records import WorkerRecord
from services.contracts.weights import WeightManifest
from services.volume import checksum
from tests.unit.learner.disks import Status
from tests.unit.learner.policies import TINY, tiny_critic, tiny_model


def test_the_same_seed_makes_the_same_model() -> None:
    a, b, c = (make_model(TINY, seed).model.state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["lm_head.weight"], c["lm_head.weight"])


MIXTURE = TINY.model_copy(update={"experts": 4, "experts_per_token": 2})


def test_a_mixture_of_experts_is_made_and_kept_as_model_folders_have_it(tmp_path: Path) -> None:
    made = make_model(MIXTURE, 3)
    assert type(made.model).__name__ == "Qwen3MoeForCausalLM"
    assert str(made.attention) == "flash attention in blocks: the learner computes on a cpu"
    published = host_weights(made, 1, 0.0).tensors
    experts = [name for name in published if name.startswith("model.layers.1.mlp.experts.")]
    # Expert by expert, as vLLM's load_weights expects them.
    assert sorted(experts) == [
        f"model.layers.1.mlp.experts.{number}.{part}_proj.weight"
        for number in range(4)
        for part in ("down", "gate", "up")
    ]
    save_description(made, tmp_path)
    save_file(published, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = load_model(str(tmp_path), PretrainedModel(path=str(tmp_path)))
    before = made.model.state_dict()
    assert all(torch.equal(t, before[name]) for name, t in again.model.state_dict().items())
    assert host_weights(again, 1, 0.0).tensors.keys() == published.keys()


def test_one_token_per_character_after_a_beginning() -> None:
    loaded = tiny_model()
    tokenizer = loaded.tokenizer
    assert tokenizer("10+2=").input_ids == [1, 5, 4, 14, 6, 18]
    assert tokenizer("7", add_special_tokens=False).input_ids == [11]
    assert tokenizer.decode([5, 4, 2], skip_special_tokens=True) == "10"
    assert end_tokens(loaded) == {tokenizer.eos_token_id} == {2}
    assert endless(loaded, Sampling()) is None


@pytest.mark.parametrize("named", [None, 2, [2], [2, 6]])
def test_the_end_of_a_turn_in_the_chat_template_is_published_as_an_end(
    tmp_path: Path, named: int | list[int] | None
) -> None:
    made = tiny_model()
    made.tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    end = made.tokenizer.convert_tokens_to_ids("<end>")
    made.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<end>\n{% endfor %}"
    assert made.model.generation_config is not None
    made.model.generation_config.eos_token_id = named
    name_ends(made)
    save_description(made, tmp_path)
    before = [] if named is None else named if isinstance(named, list) else [named]
    found = json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]
    assert found == [*before, end]
    assert end_tokens(made) == {2, *before, end}


def test_a_model_without_an_end_of_sequence_is_named_with_what_ends_completions() -> None:
    loaded = tiny_model()
    loaded.tokenizer.eos_token = None
    assert loaded.model.generation_config is not None
    loaded.model.generation_config.eos_token_id = None
    assert "only sampling.max_tokens end completions" in str(endless(loaded, Sampling()))
    said = endless(loaded, Sampling(stop_token_ids=[5]))
    assert "only sampling.stop_token_ids or sampling.max_tokens end completions" in str(said)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, value: float) -> None:
    made = tiny_model()
    with torch.no_grad():
        made.model.model.norm.weight[0] = value
    save_description(made, tmp_path)
    save_file(host_weights(made, 1, 0.0).tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnusableModel, match=r"model\.norm\.weight holds NaN or infinite numbers"):
        load_model(str(tmp_path), PretrainedModel(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "no such folder"),
        (lambda path: path.mkdir(), "no config.json"),
        (
            lambda path: (path.mkdir(), (path / "config.json").write_text("{}")),
            "no .safetensors file",
        ),
    ],
)
def test_a_folder_without_a_model_is_refused_in_words(
    tmp_path: Path, prepare: object, message: str
) -> None:
    path = tmp_path / "model"
    prepare(path)  # type: ignore[operator]
    with pytest.raises(UnusableModel, match=message):
        load_model(str(path), PretrainedModel(path=str(path)))


def reward_model(folder: Path, labels: int = 1) -> torch.Tensor:
    """The head of a reward model in `folder`."""
    model = tiny_critic(labels)
    model.save_pretrained(folder)
    head: torch.Tensor = model.score.weight.detach()
    return head


def test_a_critic_from_a_language_model_values_0_and_one_from_a_reward_model_its_score(
    tmp_path: Path,
) -> None:
    policy = tiny_model().model
    policy.save_pretrained(tmp_path / "policy")
    head = reward_model(tmp_path / "reward")
    config = PretrainedModel(path="policy")

    new = load_critic(str(tmp_path / "policy"), config, policy)
    taught = load_critic(str(tmp_path / "reward"), config, policy)

    assert new.score.weight.shape == (1, TINY.hidden_size)
    assert not new.score.weight.any()
    layer = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(new.state_dict()[layer], policy.state_dict()[layer])
    assert torch.equal(taught.score.weight, head)
    assert "lm_head.weight" not in new.state_dict()


def test_a_critic_that_does_not_fit_the_policy_is_refused_in_words(tmp_path: Path) -> None:
    policy, config = tiny_model().model, PretrainedModel(path="policy")
    reward_model(tmp_path / "two", labels=2)
    small = make_model(TINY.model_copy(update={"tokenizer": CharacterTokenizer(alphabet="01")}), 0)
    small.model.save_pretrained(tmp_path / "small")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "small").state_dict()
    (tmp_path / "part").mkdir()
    (tmp_path / "part/config.json").write_text((tmp_path / "small/config.json").read_text())
    del whole["model.norm.weight"]
    save_file(whole, tmp_path / "part/model.safetensors", metadata={"format": "pt"})
    for folder, message in (
        ("none", "the critic's model .*none: no such folder"),
        ("two", "score.weight, or has it in another shape; a value head has one output"),
        ("part", "lacks model.norm.weight"),
        ("small", "knows 6 tokens, the policy's 22: a critic needs the policy's tokenizer"),
    ):
        with pytest.raises(UnusableModel, match=message):
            load_critic(str(tmp_path / folder), config, policy)


@pytest.mark.parametrize(
    ("config", "own", "device", "dtype"),
    [
        ("auto", torch.bfloat16, "cpu", torch.float32),
        ("auto", torch.bfloat16, "cuda", torch.bfloat16),
        ("auto", torch.float16, "cuda", torch.bfloat16),
        ("auto", torch.float32, "cuda", torch.float32),
        ("bfloat16", torch.float32, "cpu", torch.bfloat16),
        ("float32", torch.bfloat16, "cuda", torch.float32),
    ],
)
def test_dtype_auto_follows_the_device_and_the_model(
    config: str,
    own: torch.dtype,
    device: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert pass_dtype(config, own, device) == dtype


def test_a_resumed_run_keeps_the_dtype_that_it_has_published(tmp_path: Path) -> None:
    auto = PretrainedModel(path="any")
    assert with_dtype(auto, tmp_path) is auto
    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    assert with_dtype(auto, tmp_path).dtype == "bfloat16"
    assert with_dtype(PretrainedModel(path="any", dtype="float32"), tmp_path).dtype == "float32"


def test_a_description_has_everything_but_weights_and_names_the_published_type(
    tmp_path: Path,
) -> None:
    loaded = tiny_model()
    loaded.publish_dtype = torch.bfloat16
    save_description(loaded, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= names
    assert not any(name.endswith(".safetensors") for name in names)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_tied_head_is_published_once() -> None:
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=19,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            tie_word_embeddings=True,
        )
    )
    names = set(weight_tensors(model))
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def whole_disk(root: Path) -> Disk:
    """A disk that accepts every write."""
    return Disk(root, Status(), threading.Event())


def publishing_run(
    register: Callable[[WeightManifest], None], workers: Callable[[], list[WorkerRecord]]
) -> Any:
    """Run r1 of a store that only registers versions and lists workers."""
    return SimpleNamespace(run="r1", publish=register, workers=workers)


def test_a_version_is_on_disk_before_it_is_registered(tmp_path: Path) -> None:
    loaded = tiny_model()
    registered: list[WeightManifest] = []

    def register(manifest: WeightManifest) -> None:
        file = manifest.files[0]
        assert checksum(tmp_path / file.name) == file.xxh3
        registered.append(manifest)

    publisher = Publisher(publishing_run(register, list), ["9f3a1c"], whole_disk(tmp_path))
    before = {name: t.clone() for name, t in loaded.model.state_dict().items()}
    publisher.submit(host_weights(loaded, 7, 123.0))
    with torch.no_grad():
        loaded.model.lm_head.weight.add_(1)  # the next optimizer step does not wait
    publisher.wait()
    publisher.close()
    (manifest,) = registered
    assert manifest.tag == "9f3a1c:7"
    assert manifest.files[0].name == "runs/r1/weights/v000007-9f3a1c.safetensors"
    assert manifest.tensors == len(before)
    assert manifest.created == 123.0
    for name, tensor in load_file(tmp_path / manifest.files[0].name).items():
        assert torch.equal(tensor, before[name])


def test_an_error_while_publishing_reaches_the_training_loop(tmp_path: Path) -> None:
    def refuse(_: WeightManifest) -> None:
        raise RuntimeError("fenced")

    publisher = Publisher(publishing_run(refuse, list), ["a"], whole_disk(tmp_path))
    publisher.submit(host_weights(tiny_model(), 1, 0.0))
    with pytest.raises(RuntimeError, match="fenced"):
        publisher.wait()
    publisher.close()


def test_a_version_file_goes_only_when_no_worker_needs_it_and_newer_ones_are_there(
    tmp_path: Path,
) -> None:
    worker = WorkerRecord(id="w", pool="p", host="h", pid=1, state="idle")
    publisher = Publisher(
        publishing_run(lambda _: None, lambda: [worker]), ["a"], whole_disk(tmp_path)
    )

    def published(*versions: int) -> list[str]:
        for version in versions:
            publisher.submit(host_weights(tiny_model(), version, 0.0))
        publisher.wait()
        return sorted(path.stem for path in (tmp_path / "runs/r1/weights").iterdir())

    assert published(0, 1, 2) == ["v000000-a", "v000001-a", "v000002-a"]
    worker.files = ["runs/r1/weights/v000000-a.safetensors"]
    assert published(3, 4) == ["v000000-a", "v000002-a", "v000003-a", "v000004-a"]
    worker.files = []
    assert published(5) == ["v000003-a", "v000004-a", "v000005-a"]
    publisher.close()


def test_a_file_that_a_worker_names_while_a_version_is_written_stays(tmp_path: Path) -> None:
    worker = WorkerRecord(id="w", pool="p", host="h", pid=1, state="idle")

    def register(manifest: WeightManifest) -> None:
        # Writing a large version takes long, on a full disk hours.
        if manifest.version == 3:
            worker.files = ["runs/r1/weights/v000000-a.safetensors"]

    publisher = Publisher(
        publishing_run(register, lambda: [worker.model_copy()]), ["a"], whole_disk(tmp_path)
    )
    for version in range(4):
        publisher.submit(host_weights(tiny_model(), version, 0.0))
    publisher.wait()
    publisher.close()
    names = sorted(path.stem for path in (tmp_path / "runs/r1/weights").iterdir())
    assert names == ["v000000-a", "v000001-a", "v000002-a", "v000003-a"]


def test_a_learner_that_was_replaced_while_it_slept_deletes_nothing_of_its_successors(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs/r1/weights"
    folder.mkdir(parents=True)
    earlier = {"v000004-a.safetensors", ".v000005-a.safetensors.x7k2"}
    successors = {
        "v000004-c.safetensors",
        "v000005-c.delta.safetensors",
        ".v000006-c.safetensors.x",
    }
    for name in earlier | successors:
        (folder / name).touch()
    publisher = Publisher(publishing_run(lambda _: None, list), ["a", "b"], whole_disk(tmp_path))
    publisher.submit(host_weights(tiny_model(), 4, 0.0))
    publisher.wait()
    publisher.close()
    assert {path.name for path in folder.iterdir()} == {"v000004-b.safetensors", *successors}


def test_a_version_whose_file_is_damaged_is_made_whole_by_publishing_it_again(
    tmp_path: Path,
) -> None:
    registered: list[WeightManifest] = []
    publisher = Publisher(publishing_run(registered.append, list), ["a"], whole_disk(tmp_path))
    loaded = tiny_model()
    assert publisher.damage() == ""
    for created in (1.0, 2.0):
        publisher.submit(host_weights(loaded, 4, created))
        publisher.wait()
        assert publisher.damage() == ""
        (file,) = registered[-1].files
        os.truncate(tmp_path / file.name, file.bytes - 1)
        wrong = f"v000004-a.safetensors has {file.bytes - 1} bytes, its manifest says {file.bytes}"
        assert publisher.damage() == wrong
    publisher.close()
    assert registered[0].files == registered[1].files


def test_the_newest_version_stays_if_the_clock_goes_back(tmp_path: Path) -> None:
    publisher = Publisher(publishing_run(lambda _: None, list), ["a"], whole_disk(tmp_path))
    folder = tmp_path / "runs/r1/weights"
    folder.mkdir(parents=True)
    for version in (1, 2, 3):
        path = folder / f"v{version:06d}-a.safetensors"
        path.touch()
        os.utime(path, (2e9, 2e9))
    publisher.submit(host_weights(tiny_model(), 4, 0.0))
    publisher.wait()
    publisher.close()
    assert "v000004-a.safetensors" in [path.name for path in folder.iterdir()]


def test_unfinished_files_of_a_dead_learner_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "runs/r1/weights"
    folder.mkdir(parents=True)
    kept = {"v000002-a.safetensors", ".v000002-a.safetensors.lock"}
    for name in (".v000003-a.safetensors.x7k2", *kept):
        (folder / name).touch()
    disk = whole_disk(tmp_path)
    Publisher(publishing_run(lambda _: None, list), ["a", "b"], disk).close()
    assert {path.name for path in folder.iterdir()} == kept


def test_muon_takes_the_matrices_inside_the_blocks() -> None:
    optimizers = Optimizers(tiny_model().model, MuonAdamW(type="muon"))
    muon, adamw = (
        {optimizers.names[p] for group in part.param_groups for p in group["params"]}
        for part in optimizers.parts
    )
    assert "model.layers.0.mlp.up_proj.weight" in muon
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= adamw
    assert len(muon) == 2 * 7


def test_muon_leaves_a_value_head_to_adamw() -> None:
    optimizers = Optimizers(tiny_critic(), MuonAdamW(type="muon"))
    muon, adamw = (
        {optimizers.names[p] for group in part.param_groups for p in group["params"]}
        for part in optimizers.parts
    )
    assert "model.layers.0.self_attn.q_proj.weight" in muon
    assert {"score.weight", "model.embed_tokens.weight"} <= adamw


def test_an_update_with_an_infinite_gradient_is_skipped() -> None:
    model = tiny_model().model
    optimizers = Optimizers(model, MuonAdamW(type="muon"))
    before = model.lm_head.weight.detach().clone()
    model.lm_head.weight.grad = torch.full_like(model.lm_head.weight, float("inf"))
    assert optimizers.step() == float("inf")
    assert torch.equal(model.lm_head.weight, before)
