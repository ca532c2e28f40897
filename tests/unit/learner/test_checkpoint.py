"""A checkpoint restores everything, loads in transformers, and is refused unless it is whole."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from learner.checkpoints import checkpoint_retention as retention
from learner.checkpoints.captured import capture
from learner.checkpoints.checkpoint_reader import (
    UnusableCheckpoint,
    load_optimizer,
    load_random_state,
    verify,
)
from learner.checkpoints.checkpoint_retention import KeepRule, clear, retain
from learner.checkpoints.checkpoint_writer import CRITIC, CRITIC_OPTIMIZER, write_checkpoint
from learner.distributed import Ranks
from learner.model.loading.model_loader import LoadedModel, load_critic, load_model
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.value_model import TokenValues, TrainedCritic, train_critic
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers
from learner.slices import RankPart
from learner.state import TrainingProgress
from learner.step import train_batch
from services.contracts.config.model import PretrainedModel
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.optimizer import AdamW, MuonAdamW
from services.contracts.schema import SchemaMismatch
from services.volume.kept_checkpoints import hide, pin
from tests.unit.learner.policies import random_samples, state_of, tiny_critic, tiny_model

STATE = TrainingProgress("r1", 10, 10, [("a", 0), ("b", 5)], "models/base")
VALUED = Algorithm.model_validate({"advantage": {"type": "gae"}, "critic": {}})
CONFIGS: list[AdamW | MuonAdamW] = [AdamW(lr=1e-3), MuonAdamW(type="muon", lr=1e-3)]


def step(loaded: LoadedModel, optimizers: Optimizers, seed: int) -> None:
    train_batch(
        state_of(TokenLogprobs(loaded.model), optimizers),
        [random_samples(groups=2, per_group=3, seed=seed)],
        Objective(Algorithm(), 1.0, 12),
        MicroBatches(Ranks(0, 1, torch.device("cpu")), 1000),
        lambda _: 1.0,
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.type)
def test_training_goes_on_exactly_where_the_checkpoint_was_made(
    tmp_path: Path, config: AdamW | MuonAdamW
) -> None:
    loaded = tiny_model()
    optimizers = Optimizers(loaded.model, config)
    step(loaded, optimizers, 1)
    folder = write_checkpoint(
        tmp_path, capture(state_of(loaded, optimizers, progress=STATE)), nothing
    )
    assert folder == tmp_path / "step-000010-b"
    (new := tmp_path / "new").touch()
    modes = {path.stat().st_mode for path in folder.rglob("*") if path.is_file()}
    assert modes == {new.stat().st_mode}, "whoever may read new files may read the weights"
    drawn = torch.rand(3)
    step(loaded, optimizers, 2)

    again = load_model(str(folder), PretrainedModel(path=str(folder)))
    again_optimizers = Optimizers(again.model, config)
    assert verify(folder) == STATE
    load_optimizer(folder, again_optimizers)
    load_random_state(folder)
    assert torch.equal(torch.rand(3), drawn)
    step(again, again_optimizers, 2)
    expected = loaded.model.state_dict()
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_changes_after_the_copy_are_not_in_the_checkpoint(tmp_path: Path) -> None:
    loaded = tiny_model()
    optimizers = Optimizers(loaded.model, CONFIGS[0])
    step(loaded, optimizers, 1)
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    moments = {name: tensor.clone() for name, tensor in optimizers.tensors().items()}
    captured = capture(state_of(loaded, optimizers, progress=STATE))

    step(loaded, optimizers, 2)

    folder = write_checkpoint(tmp_path, captured, nothing)
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(tensor, before[name]), name
    for name, tensor in load_file(folder / "training" / "optimizer.safetensors").items():
        assert torch.equal(tensor, moments[name]), name


def a_critic(config: AdamW | MuonAdamW) -> TrainedCritic:
    model = tiny_critic()
    optimizers = Optimizers(model, config)
    return TrainedCritic(
        model, TokenValues(model), optimizers, CriticConfig(), Moments(0.5, 1.0, 3.0)
    )


def critic_step(critic: TrainedCritic, seed: int) -> None:
    samples = random_samples(groups=2, per_group=3, seed=seed)
    for sample in samples:
        sample.values = torch.zeros(len(sample.sampler_logprobs) + 1)
        sample.returns = torch.linspace(0, 1, len(sample.sampler_logprobs), dtype=torch.float64)
    train_critic(
        critic,
        [samples],
        VALUED,
        MicroBatches(Ranks(0, 1, torch.device("cpu")), 1000),
        lambda _: 1.0,
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.type)
def test_a_critic_goes_on_exactly_where_the_checkpoint_was_made(
    tmp_path: Path, config: AdamW | MuonAdamW
) -> None:
    loaded = tiny_model()
    critic = a_critic(config)
    critic_step(critic, 1)
    optimizers = Optimizers(loaded.model, config)
    captured = capture(state_of(loaded, optimizers, critic=critic, progress=STATE))
    critic_step(critic, 2)
    folder = write_checkpoint(tmp_path, captured, nothing)
    verify(folder)

    model = load_critic(str(folder / CRITIC), PretrainedModel(path="policy"), loaded.model)
    again = TrainedCritic(
        model, TokenValues(model), Optimizers(model, config), critic.config, Moments()
    )
    load_optimizer(folder, again.optimizers, CRITIC_OPTIMIZER)
    critic_step(again, 2)
    expected = critic.model.state_dict()
    assert float(expected["score.weight"].abs().max()) > 0
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    # vLLM reads every *.safetensors next to the config, and must not find it.
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]


def test_the_units_of_a_critic_are_as_exact_as_they_were(tmp_path: Path) -> None:
    state = replace(STATE, critic_moments=(1 / 3, 2e-17, 0.1 + 0.2))
    loaded = tiny_model()
    captured = capture(state_of(loaded, Optimizers(loaded.model, CONFIGS[0]), progress=state))
    assert verify(write_checkpoint(tmp_path, captured, nothing)) == state


def nothing() -> None:
    """Allow the rename."""


def checkpoint(root: Path) -> Path:
    loaded = tiny_model()
    captured = capture(state_of(loaded, Optimizers(loaded.model, CONFIGS[0]), progress=STATE))
    return write_checkpoint(root, captured, nothing)


def test_a_checkpoint_is_a_hugging_face_folder(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("1+2=").input_ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(tokenizer("1+2= 3").input_ids, skip_special_tokens=True) == "1+2= 3"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert set(load_file(folder / "model.safetensors")) == set(model.state_dict())
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_a_server_of_a_checkpoint_finds_only_the_models_weights(tmp_path: Path) -> None:
    # vLLM reads every *.safetensors next to the config.
    found = [path.name for path in checkpoint(tmp_path).glob("*.safetensors")]
    assert found == ["model.safetensors"]


FILES = [
    "model.safetensors",
    "training/optimizer.safetensors",
    "training/state.json",
    "config.json",
]


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path)
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UnusableCheckpoint, match=name):
        verify(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path)
    path = folder / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UnusableCheckpoint, match=name):
        verify(folder)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_missing_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path)
    path = folder / name
    path.unlink()
    with pytest.raises(UnusableCheckpoint, match=f"step-000010-b lacks {name}"):
        verify(folder)


def test_a_torn_manifest_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UnusableCheckpoint, match="step-000010-b is damaged"):
        verify(folder)


def test_an_uncommitted_attempt_is_replaced_whole(tmp_path: Path) -> None:
    for name in ("step-000010-b", ".step-000010-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "junk").write_text("left by a try that the disk did not take")
    folder = checkpoint(tmp_path)
    assert verify(folder) == STATE
    assert not (folder / "junk").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000010-b"]


def test_a_learner_that_was_replaced_leaves_nothing(tmp_path: Path) -> None:
    def fenced() -> None:
        raise RuntimeError("fenced")

    loaded = tiny_model()
    captured = capture(state_of(loaded, Optimizers(loaded.model, CONFIGS[0]), progress=STATE))
    with pytest.raises(RuntimeError, match="fenced"):
        write_checkpoint(tmp_path, captured, fenced)
    assert list(tmp_path.iterdir()) == []


# Lineage b began at step 20 of a, and c at step 30 of b.
LINEAGES = [("a", 0), ("b", 20), ("c", 30)]


def left_after(
    root: Path, names: list[str], keep: int, step: int, every: int | None = None
) -> list[str]:
    for name in names:
        (root / name).mkdir()
    current = TrainingProgress("r1", step, step, LINEAGES, "models/base")
    (root / current.directory).mkdir(exist_ok=True)
    before = {path.name for path in root.glob("step-*")}
    gone = retain(root, KeepRule(keep, every), current)
    assert before - {path.name for path in root.glob("step-*")} == set(gone)
    return sorted(path.name for path in root.iterdir())


def test_a_pinned_checkpoint_stays_until_its_pin_is_taken_away(tmp_path: Path) -> None:
    names = ["step-000010-a", "step-000020-a", "step-000030-b"]
    (tmp_path / names[0]).mkdir()
    pin(tmp_path / names[0], True)
    newest = [names[2], "step-000040-c"]
    assert left_after(tmp_path, names[1:], 2, 40) == ["pinned-step-000010-a", names[0], *newest]
    pin(tmp_path / names[0], False)
    assert left_after(tmp_path, [], 2, 40) == newest


def test_the_first_checkpoint_of_each_keep_every_steps_stays(tmp_path: Path) -> None:
    names = [f"step-0000{step}-a" for step in ("06", "11", "12", "17")]
    names += ["step-000025-b", "step-000031-c"]
    left = ["step-000011-a", "step-000025-b", "step-000031-c", "step-000040-c"]
    assert left_after(tmp_path, names, 1, 40, every=10) == left


def test_a_checkpoint_that_is_pinned_while_it_is_deleted_stays_or_the_pin_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "step-000010-a"
    old.mkdir()
    monkeypatch.setattr(retention, "pinned_names", lambda _: set())
    pin(old, True)
    left = [f"pinned-{old.name}", old.name, "step-000040-c"]
    assert left_after(tmp_path, [], 1, 40) == left
    pin(old, False)
    assert hide(old, f".{old.name}") == tmp_path / f".{old.name}"
    with pytest.raises(FileNotFoundError):
        pin(old, True)


def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    names = ["step-000010-a", "step-000020-a", "step-000030-b"]
    assert left_after(tmp_path, names, 2, 40) == ["step-000030-b", "step-000040-c"]


def test_the_current_checkpoint_stays_whatever_else_is_there(tmp_path: Path) -> None:
    names = ["step-000040-c", "step-000050-c"]
    assert left_after(tmp_path, names, 1, 30) == ["step-000030-c"]


def test_checkpoints_of_a_dead_lineage_beyond_the_fork_are_deleted_at_any_age(
    tmp_path: Path,
) -> None:
    # a went on to 30 and b to 40 without a commit: neither may displace committed checkpoints.
    names = ["step-000020-a", "step-000030-a", "step-000030-b", "step-000040-b"]
    left = ["step-000020-a", "step-000030-b", "step-000040-c"]
    assert left_after(tmp_path, names, 3, 40) == left


def test_unfinished_checkpoints_of_dead_learners_are_deleted(tmp_path: Path) -> None:
    names = [".step-000040-b", ".step-000010-a.old", "step-000030-b"]
    assert left_after(tmp_path, names, 2, 40) == ["step-000030-b", "step-000040-c"]


def test_a_learner_that_slept_after_its_commit_deletes_nothing_of_its_successor(
    tmp_path: Path,
) -> None:
    # d took over at c's step 40 and has committed since. c does not know d.
    names = ["step-000030-b", "step-000050-d", ".step-000060-d"]
    left = [".step-000060-d", "step-000040-c", "step-000050-d"]
    assert left_after(tmp_path, names, 1, 40) == left


def test_a_learner_that_starts_deletes_what_earlier_ones_have_not_finished(tmp_path: Path) -> None:
    left = [".step-000040-c", ".step-000060-d", "step-000010-a"]
    for name in [*left, ".step-000020-a", ".step-000030-b", ".step-000010-b.old"]:
        (tmp_path / name).mkdir()
    # d has taken over from c since, so its checkpoints are not touched.
    clear(tmp_path, [*LINEAGES, ("d", 40)], "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_optimizer_state_of_another_model_is_refused() -> None:
    optimizers = Optimizers(tiny_model().model, CONFIGS[0])
    with pytest.raises(ValueError, match=r"'model\.layers\.9\.weight', which this model lacks"):
        optimizers.load({"model.layers.9.weight/exp_avg": torch.zeros(1)})


def test_another_versions_checkpoint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path)
    monkeypatch.setattr("learner.checkpoints.checkpoint_reader.SCHEMA", 3)
    with pytest.raises(SchemaMismatch, match="checkpoint step-000010-b has schema 2"):
        verify(folder)


def test_ranks_check_every_file_between_them(tmp_path: Path) -> None:
    loaded = tiny_model()
    captured = capture(state_of(loaded, Optimizers(loaded.model, CONFIGS[0]), progress=STATE))
    folder = write_checkpoint(tmp_path, captured, nothing)
    found: list[int] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        # The manifest does not list itself. Training does not need the other file.
        if path.name in ("manifest.json", "generation_config.json"):
            continue
        whole = path.read_bytes()
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        noticed = []
        for rank in range(3):
            try:
                verify(folder, RankPart(rank, 3))
            except UnusableCheckpoint:
                noticed.append(rank)
        # One rank reads it. If it describes the other files, their ranks may notice as well.
        assert noticed, path.name
        found += noticed if len(noticed) == 1 else []
        path.write_bytes(whole)
    assert set(found) == {0, 1, 2}


def test_parts_are_of_equal_size_and_hold_every_tensor_once() -> None:
    tensors = {f"t{n}": torch.zeros(size) for n, size in enumerate((50, 30, 30, 20, 20, 10, 0))}
    parts = [RankPart(number, 3).of(tensors) for number in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(tensors)
    # 160 in all: 50; 30 + 20; 30 + 20 + 10.
    assert [sum(len(tensors[name]) for name in part) for part in parts] == [60, 50, 50]
    assert RankPart(1, 3).file("training/optimizer.safetensors") == (
        "training/optimizer-00002-of-00003.safetensors"
    )
