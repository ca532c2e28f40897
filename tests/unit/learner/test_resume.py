"""On the same recorded groups, 20 steps in one go equal 10 steps, a checkpoint and 10 more, bit for
bit, with all state that a run carries from step to step."""

import errno
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from learner.assembly import RunStart, described, prepare
from learner.checkpoints.captured import capture
from learner.checkpoints.checkpoint_reader import UnusableCheckpoint, verify
from learner.checkpoints.checkpoint_writer import write_checkpoint
from learner.checkpoints.resume_point import read_checkpoint
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.errors import RunCannotGoOn
from learner.model.loading.lora import PolicyFolders
from learner.model.loading.saving import save_description, weight_tensors
from learner.optim.optimizers import Optimizers
from learner.rl import fetch, train
from learner.state import TrainingProgress, TrainingState
from learner.store.commands import Command, GroupShare
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.optimizer import AdamW
from services.contracts.groups.trajectory import encode
from services.contracts.records import RunRecord, RunState
from services.volume import Volume
from tests.unit.learner.policies import state_of, tiny_model, trajectory_group

# 40 steps each: on a busy machine longer than the two minutes that other tests may take.
pytestmark = pytest.mark.timeout(300)

STEPS, HALF, GROUPS = 20, 10, 4
ALONE = Ranks(0, 1, torch.device("cpu"))
RL: dict[str, Any] = {
    "type": "rl",
    "data": {"dataset": "recorded"},
    "rewards": [{"verifier": "exact"}],
    "sampling": {"max_tokens": 12},
    # A resumed run that forgot its step would use another learning rate.
    "schedule": {"type": "cosine", "floor": 0.1, "warmup_steps": 3},
    "training": {"max_steps": STEPS},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "running means, AdamW": {
        "algorithm": {
            "prompts_per_step": GROUPS,
            "samples_per_prompt": 3,
            "minibatches": 2,
            "advantage": {"type": "running_mean"},
        },
        "optimizer": {"type": "adamw", "lr": 1e-3},
    },
    "PPO with a critic, adaptive KL, Muon": {
        "algorithm": {
            "prompts_per_step": GROUPS,
            "samples_per_prompt": 3,
            "minibatches": 2,
            "epochs_per_batch": 2,
            "advantage": {"type": "gae", "lambda": 0.9},
            "critic": {
                "optimizer": {"type": "adamw", "lr": 1e-3},
                "normalisation": {"type": "exponential", "beta": 0.9},
                "warmup_steps": 2,
            },
            "proximal": {"type": "recompute"},
            "kl": {
                "type": "k1_in_reward",
                "beta": 0.1,
                "adaptive": {"target": 0.5, "horizon": 100},
            },
        },
        "optimizer": {"type": "muon", "lr": 1e-3, "adamw_lr": 1e-3},
    },
}


class Recorded:
    """The recorded groups, in the form of a RunStore."""

    lineage = "a"

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        task = torch.Generator().manual_seed(0)
        for number in range(STEPS * GROUPS):
            rewards = torch.randint(0, 2, (3,), generator=task).double().tolist()
            group = trajectory_group(rewards, task=number, prompt_key=str(number % 7))
            group.tokens = torch.randint(4, 20, (len(group.tokens),), generator=task).numpy()
            self.blobs.append(bytes(encode(group)))

        self.trajectories = self

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return method(*arguments)

    def payloads(self, positions: list[int]) -> list[bytes]:
        return [self.blobs[position] for position in positions]

    def payload(self, kept: bytes) -> bytes:
        return kept

    def lineages(self) -> list[tuple[str, int]]:
        return [("killed", 0), ("a", 0)]

    def model_path(self, path: str, volume: Volume, key: str = "model.path") -> str:
        return path


def start(root: Path) -> str:
    """The folder of the model that all runs begin from."""
    folder = root / "model"
    loaded = tiny_model()
    save_description(loaded, folder)
    save_file(weight_tensors(loaded.model), folder / "model.safetensors", {"format": "pt"})
    return str(folder)


class Started(Recorded):
    """The recorded groups of a run that starts from another run's model: a folder, while it
    exists."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def model_path(self, path: str, volume: Volume, key: str = "model.path") -> str:
        if not self._folder.exists():
            raise RunCannotGoOn(f"{key} {path}: run source has no checkpoint of step 3")
        return str(self._folder)


def begun(
    config: RLConfig, root: Path, checkpoint: Path | None, store: Recorded | None = None
) -> TrainingState:
    record = RunRecord(
        id="r",
        name="r",
        pool="default",
        kind="rl",
        state=RunState.RUNNING,
        config={},
        created=0.0,
        max_steps=STEPS,
        checkpoint=str(checkpoint.relative_to(root)) if checkpoint else None,
    )
    return prepare(record, config, environment(root, store or Recorded()))


def environment(root: Path, store: Any) -> RunEnvironment:
    return RunEnvironment(ALONE, store, Volume(root), threading.Event())


def advance(state: TrainingState, config: RLConfig, steps: int) -> list[dict[str, float]]:
    """Train `steps` steps on the recorded groups, starting at `state`. Returns their metrics."""
    store, rows = Recorded(), []
    for _ in range(steps):
        step = state.progress.step + 1
        first = (step - 1) * GROUPS
        shares = [GroupShare(first + i, [0, 1, 2], of=3, counts=True) for i in range(GROUPS)]
        command = Command("train", step, [[shares[:2]], [shares[2:]]], STEPS)
        batch = fetch(command, config, ALONE, store, state.progress)  # type: ignore[arg-type]
        rows.append(train(state, batch, config, ALONE, command))
    return rows


def test_the_schedule_and_the_critics_warm_up_go_by_the_runs_steps(tmp_path: Path) -> None:
    raw = RL | CONFIGS["PPO with a critic, adaptive KL, Muon"]
    raw |= {"model": {"path": start(tmp_path)}, "schedule": {"type": "linear"}}
    config = parse_config(raw)
    assert isinstance(config, RLConfig)
    rows = advance(begun(config, tmp_path, None), config, 3)
    # Each batch has 2 minibatches twice, and the run 20 · 4 updates: the last of step s is number
    # 4s − 1 from 0. The critic follows the same schedule.
    rates = [1e-3 * (1 - (4 * step - 1) / 80) for step in (1, 2, 3)]
    assert [row["critic/lr"] for row in rows] == pytest.approx(rates)
    # The policy is only measured at first, once.
    assert [row["train/updates"] for row in rows] == [0, 0, 4]
    assert rows[2]["train/lr"] == pytest.approx(rates[2])


class Restarted(Recorded):
    """The store of a run whose learner starts again. It records warnings and steps back."""

    def __init__(self) -> None:
        super().__init__()
        self.committed_step, self.warnings, self.current = 4, list[str](), ""

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def go_back(self, step: int, directory: str, root: Path) -> None:
        self.current = directory


FILES = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "training/optimizer.safetensors",
    "training/random.safetensors",
    "training/state.json",
    "manifest.json",
]


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "changed":
            path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        case "a folder":
            path.unlink()
            path.mkdir()
        case _:
            path.unlink()


def checkpoints(data: Path, steps: list[int]) -> list[Path]:
    """Checkpoints of one run at these steps."""
    loaded = tiny_model()
    return [
        write_checkpoint(
            data / "runs/r/checkpoints",
            capture(
                state_of(
                    loaded,
                    Optimizers(loaded.model, AdamW()),
                    progress=TrainingProgress("r", step, step, [("a", 0)], "base"),
                )
            ),
            lambda: None,
        )
        for step in steps
    ]


def mended(path: Path, content: bytes) -> None:
    if path.is_dir():
        path.rmdir()
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "changed", "gone", "a folder"])
def test_a_run_goes_back_to_the_newest_checkpoint_that_is_whole(tmp_path: Path, how: str) -> None:
    folders = checkpoints(tmp_path, [2, 3, 4])
    record: Any = SimpleNamespace(checkpoint=str(folders[2].relative_to(tmp_path)))
    volume = Volume(tmp_path)
    damaged(folders[1] / "training/state.json", how)
    for name in FILES:
        store: Any = Restarted()
        whole = (folders[2] / name).read_bytes()
        damaged(folders[2] / name, how)
        saved = read_checkpoint(record, ALONE, store, volume)
        assert saved is not None
        assert (saved[0], saved[1].step, store.committed_step) == (folders[0], 2, 2), name
        assert store.current == "runs/r/checkpoints/step-000002-a"
        (warning,) = store.warnings
        assert "the run goes on from step 2, whose checkpoint is whole" in warning
        assert name in warning
        mended(folders[2] / name, whole)
    # Training does not need this file.
    damaged(folders[2] / "generation_config.json", how)
    store = Restarted()
    assert read_checkpoint(record, ALONE, store, volume) == (folders[2], verify(folders[2]))
    assert [("generation_config.json" in said) for said in store.warnings] == [True] * (
        how != "gone"
    )
    assert not (folders[2] / "generation_config.json").exists()
    damaged(folders[0] / "config.json", how)
    damaged(folders[2] / "config.json", how)
    with pytest.raises(UnusableCheckpoint, match=r"config\.json.*no earlier checkpoint of the run"):
        read_checkpoint(record, ALONE, Restarted(), volume)  # type: ignore[arg-type]


def test_a_checkpoint_that_the_disk_cannot_read_counts_as_damaged_if_an_earlier_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = checkpoints(tmp_path, [2, 4])
    record: Any = SimpleNamespace(checkpoint=str(folders[1].relative_to(tmp_path)))
    store: Any = Restarted()
    unreadable = {folders[1] / "model.safetensors", folders[1] / "generation_config.json"}
    open_file = Path.open

    def fails(path: Path, *arguments: Any, **options: Any) -> Any:
        if path in unreadable:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fails)
    saved = read_checkpoint(record, ALONE, store, Volume(tmp_path))
    assert saved is not None
    assert (saved[0], store.committed_step) == (folders[0], 2)
    left_out, went_back = store.warnings
    assert "generation_config.json: Input/output error" in left_out
    assert "model.safetensors cannot be read: Input/output error" in went_back

    # Nothing can be read: that may pass, and no run ends by it.
    unreadable.add(folders[0] / "model.safetensors")
    with pytest.raises(OSError, match="Input/output error"):
        read_checkpoint(record, ALONE, store, Volume(tmp_path))


def weights(state: TrainingState) -> dict[str, torch.Tensor]:
    models: dict[str, nn.Module] = {"policy": state.loaded.model}
    if state.critic:
        models["critic"] = state.critic.model
    return {
        f"{model} {name}": tensor.clone()
        for model, module in models.items()
        for name, tensor in module.state_dict().items()
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_twenty_steps_equal_ten_a_checkpoint_and_ten_bit_for_bit(tmp_path: Path, name: str) -> None:
    config = parse_config(RL | CONFIGS[name] | {"model": {"path": start(tmp_path)}})
    assert isinstance(config, RLConfig)

    straight = begun(config, tmp_path, None)
    before = weights(straight)
    advance(straight, config, STEPS)

    first = begun(config, tmp_path, None)
    advance(first, config, HALF)
    folder = (tmp_path / first.progress.path).parent
    captured = capture(first)
    second = begun(config, tmp_path, write_checkpoint(folder, captured, lambda: None))
    assert second.progress.step == HALF
    advance(second, config, STEPS - HALF)

    assert straight.progress == second.progress
    expected, found = weights(straight), weights(second)
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
    moved = [key for key, tensor in expected.items() if not torch.equal(before[key], tensor)]
    assert len(moved) == len(before)


def test_a_start_deletes_the_half_checkpoint_of_a_killed_learner(tmp_path: Path) -> None:
    left = tmp_path / "runs/r/checkpoints/.step-000003-killed"
    left.mkdir(parents=True)
    model = {"path": start(tmp_path), "dtype": "float32"}
    config = parse_config({**RL, "model": model})
    assert isinstance(config, RLConfig)
    begun(config, tmp_path, None)
    assert not left.exists()


SOURCE = "runs/source/checkpoints/step-000003-a"


def from_source(root: Path, **algorithm: Any) -> tuple[RLConfig, Path]:
    """A run that started from another run's checkpoint, and its own first checkpoint."""
    folder = root / SOURCE
    folder.parent.mkdir(parents=True)
    Path(start(root)).rename(folder)
    (folder / "manifest.json").write_text('{"files": {}}')
    raw = RL | {"algorithm": algorithm, "model": {"path": "run:source@3"}}
    config = parse_config(raw)
    assert isinstance(config, RLConfig)
    state = begun(config, root, None, Started(folder))
    advance(state, config, 1)
    folder = (root / state.progress.path).parent
    return config, write_checkpoint(folder, capture(state), lambda: None)


def test_a_run_goes_on_from_its_checkpoint_when_what_it_started_from_is_gone(
    tmp_path: Path,
) -> None:
    gae = {"advantage": {"type": "gae"}, "critic": {"path": "run:source@3"}}
    config, own = from_source(tmp_path, prompts_per_step=GROUPS, samples_per_prompt=3, **gae)
    # Someone has freed disk space.
    shutil.rmtree(tmp_path / SOURCE)
    store: Any = Started(tmp_path / SOURCE)
    state = begun(config, tmp_path, own, store)
    assert state.progress.step == 1
    # So does the plan of its memory on GPUs.
    folders = PolicyFolders(state.progress.base_model, tmp_path / "none", own)
    begins = RunStart(config, folders, state.progress)
    assert described(begins, environment(tmp_path, store)) is not None


def test_a_run_does_not_begin_with_a_damaged_checkpoint_of_another(tmp_path: Path) -> None:
    config, _ = from_source(tmp_path, prompts_per_step=GROUPS, samples_per_prompt=3)
    listed = {"model.safetensors": {"bytes": 1, "xxh3": "0"}}
    (tmp_path / SOURCE / "manifest.json").write_text(json.dumps({"files": listed}))
    with pytest.raises(UnusableCheckpoint, match=r"is damaged: model\.safetensors has"):
        begun(config, tmp_path, None, Started(tmp_path / SOURCE))


def test_a_run_finds_its_reference_when_the_data_volume_has_moved(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    kl = {"type": "k3", "beta": 0.1}
    config, own = from_source(before, prompts_per_step=GROUPS, samples_per_prompt=3, kl=kl)
    before.rename(after)
    own = after / own.relative_to(before)
    state = begun(config, after, own, Started(after / SOURCE))
    assert state.copies.reference is not None
    assert state.progress.base_model == str(after / SOURCE)


def test_a_learner_that_slept_while_it_took_a_run_over_goes_by_its_own_lineage(
    tmp_path: Path,
) -> None:
    class Replaced(Recorded):
        """A run that another learner has taken over since."""

        def lineages(self) -> list[tuple[str, int]]:
            return [*super().lineages(), ("successor", 0)]

    config = parse_config({**RL, "model": {"path": start(tmp_path)}})
    assert isinstance(config, RLConfig)
    progress = begun(config, tmp_path, None, Replaced()).progress
    assert (progress.lineage, progress.lineages) == ("a", [("killed", 0), ("a", 0)])
