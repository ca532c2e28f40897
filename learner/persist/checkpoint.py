"""Checkpoints: folders that transformers loads, or peft where adapters are trained, plus what a
resumed run needs.

The next step waits only for a copy on the host (`capture`). The checkpoint is written under
another name, every file and the folder fsynced, then renamed; then the store's commit makes it the
run's current one. `verify` checks every byte against the manifest: a damaged checkpoint is never
loaded in part.

A folder's name carries the lineage that wrote it: a learner that was replaced while it slept can
neither replace nor delete what its successor wrote, whenever it wakes.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from learner.batch.lineage import Ancestry
from learner.errors import RunCannotGoOn
from learner.model.loading import (
    LoadedModel,
    as_in_a_folder,
    on_host,
    save_description,
    weight_tensors,
)
from learner.model.lora import save_adapter_config, trained_on_host
from learner.model.offload import present
from learner.optim.optimizers import Optimizers
from learner.slices import rows_of
from learner.state import SCHEMA, Progress, TrainingState
from services.contracts.schema import require_schema
from services.contracts.weights import ADAPTER_WEIGHTS
from services.volume import DamagedFile, check_file, checksum, fsync, opened_by_umask

MANIFEST = "manifest.json"
# In a folder of their own: what serves the checkpoint takes every *.safetensors beside the config
# for weights.
TRAINING = "training"
STATE = f"{TRAINING}/state.json"
OPTIMIZER = f"{TRAINING}/optimizer.safetensors"
RANDOM = f"{TRAINING}/random.safetensors"
WEIGHTS = "model.safetensors"
# A model folder of its own, that AutoModelForSequenceClassification loads.
CRITIC = f"{TRAINING}/critic"
CRITIC_OPTIMIZER = f"{TRAINING}/critic_optimizer.safetensors"
COPY = f"{TRAINING}/{{}}.safetensors"
"""Weights of a copy of the policy, by its name."""
NAME = re.compile(r"step-(\d+)-([^-]+)")
UNFINISHED = re.compile(r"\.step-(\d+)-([^-.]+)(?:\.old)?")
"""Not renamed yet, or on its way out."""


class UnusableCheckpoint(RunCannotGoOn):
    """A checkpoint folder is incomplete or damaged; the message names the file."""


@dataclass(frozen=True)
class Captured:
    """A copy of all that a checkpoint holds, on the host, which training does not change."""

    loaded: LoadedModel
    """For config and tokenizer, which training never changes; not for its weights."""
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    random: dict[str, torch.Tensor]
    progress: Progress
    critic: "CapturedCritic | None" = None
    copies: Mapping[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    """Weights of the copies of the policy that change, by name."""

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        parts = [self.weights, self.optimizer, self.random, *self.copies.values()]
        parts += [self.critic.weights, self.critic.optimizer] if self.critic else []
        return sum(tensor.nbytes for part in parts for tensor in part.values())


@dataclass(frozen=True)
class CapturedCritic:
    """A critic on the host."""

    model: PreTrainedModel
    """For its config; not for its weights."""
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]


def capture(state: TrainingState, keep: bool = True) -> Captured:
    """Copy to the host what the next step changes. Of a sharded state every rank gives its slices;
    one without `keep` copies nothing."""
    critic = None
    if state.critic:
        with present(state.critic.offloads, changed=False):
            weights = on_host(weight_tensors(state.critic.model), keep=keep)
            critic = CapturedCritic(
                state.critic.model,
                as_in_a_folder(state.critic.model, weights),
                state.critic.optimizers.tensors(keep),
            )
    copies = {}
    for name, copy in state.copies.moving.items():
        with copy.present():
            copies[name] = on_host(copy.parameters, keep=keep)
    with present(state.offloads, changed=False):
        optimizer = state.optimizers.tensors(keep)
    return Captured(
        state.loaded,
        trained_on_host(state.loaded, keep=keep),
        optimizer,
        _random_state(state.loaded.model.device),
        state.progress,
        critic,
        copies,
    )


def write_checkpoint(root: Path, captured: Captured, before_rename: Callable[[], None]) -> Path:
    """Write a checkpoint under `root`, the run's folder of checkpoints. Durable when this returns.

    `before_rename` may raise to leave nothing under the final name. A folder of that name is an
    earlier, uncommitted try of the same learner, and is replaced.
    """
    folder = root / captured.progress.directory
    beside = root / f".{folder.name}"
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(beside, ignore_errors=True)
    (beside / TRAINING).mkdir(parents=True)
    try:
        if captured.loaded.lora:
            captured.loaded.tokenizer.save_pretrained(beside)
            save_adapter_config(captured.loaded, beside, str(root.parent.absolute() / "model"))
        else:
            save_description(captured.loaded, beside)
        weights = ADAPTER_WEIGHTS if captured.loaded.lora else WEIGHTS
        save_file(captured.weights, beside / weights, metadata={"format": "pt"})
        save_file(captured.optimizer, beside / OPTIMIZER)
        save_file(captured.random, beside / RANDOM)
        if captured.critic:
            _write_critic(beside, captured.critic)
        for name, copied in captured.copies.items():
            save_file(copied, beside / COPY.format(name))
        (beside / STATE).write_text(json.dumps(asdict(captured.progress), indent=2) + "\n")
        _write_manifest(beside)
        before_rename()
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
        fsync(root)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _write_critic(folder: Path, critic: CapturedCritic) -> None:
    critic.model.config.save_pretrained(folder / CRITIC)
    save_file(critic.weights, folder / CRITIC / WEIGHTS, metadata={"format": "pt"})
    save_file(critic.optimizer, folder / CRITIC_OPTIMIZER)


def verify(folder: Path) -> Progress:
    """The state of a whole checkpoint. Raises UnusableCheckpoint naming what is wrong, and
    SchemaMismatch."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        for name, entry in manifest["files"].items():
            check_file(folder / name, entry["bytes"], entry["xxh3"], name)
        raw = json.loads((folder / STATE).read_text())
    except FileNotFoundError as error:
        raise UnusableCheckpoint(
            f"checkpoint {folder.name} lacks {_within(folder, error)}"
        ) from error
    except (DamagedFile, KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise UnusableCheckpoint(f"checkpoint {folder.name} is damaged: {error}") from error
    require_schema(f"checkpoint {folder.name}", raw.get("schema"), SCHEMA)
    raw["lineages"] = [(str(name), int(began)) for name, began in raw["lineages"]]
    if "critic_moments" in raw:
        raw["critic_moments"] = tuple(raw["critic_moments"])
    return Progress(**raw)


def _within(folder: Path, error: FileNotFoundError) -> Path:
    path = Path(str(error.filename))
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def load_optimizer(folder: Path, optimizers: Optimizers, name: str = OPTIMIZER) -> None:
    """Load the state of the policy's optimizers, or of the critic's, from a verified checkpoint."""
    with _usable(folder):
        optimizers.load(load_file(folder / name))


def load_random_state(folder: Path) -> None:
    """Continue with the random numbers of a verified checkpoint."""
    with _usable(folder):
        random = load_file(folder / RANDOM)
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])


@torch.no_grad()
def load_copy(folder: Path, name: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Load the copy `name` of the policy into `weights`, if a verified checkpoint has it: a config
    without it made none."""
    if not (path := folder / COPY.format(name)).exists():
        return
    with _usable(folder):
        saved = load_file(path)
        if saved.keys() != weights.keys():
            raise ValueError(f"{path.name} has other weights than the model")
        for key, weight in weights.items():
            weight.copy_(rows_of(saved[key], weight))


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, FileNotFoundError, ValueError) as error:
        raise UnusableCheckpoint(f"checkpoint {folder.name} cannot be used: {error}") from error


def retain(root: Path, keep: int, current: Progress) -> list[str]:
    """Delete all but the newest `keep` checkpoints on the path to `current`, the run's current one,
    which always stays. Returns the deleted names.

    Checkpoints of a dead lineage beyond the fork were never committed, and are deleted; so are
    unfinished ones of learners that died. A lineage that `current` does not know is a successor's:
    its folders are not touched.
    """
    ancestry = Ancestry(tuple(current.lineages))
    known = {lineage for lineage, _ in current.lineages}
    found = {name: at for name, at in _checkpoints(root, NAME).items() if at[1] in known}
    path = [
        name
        for name, (step, lineage) in sorted(found.items(), key=lambda item: item[1][0])
        if step <= current.step and ancestry.passed(lineage, step)
    ]
    gone = sorted(found.keys() - set(path[-keep:]) - {current.directory})
    for name in gone:
        # Renamed first: a reader sees a whole checkpoint or none.
        (root / name).rename(root / f".{name}.old")
    for name, (_, lineage) in _checkpoints(root, UNFINISHED).items():
        if lineage in known:
            shutil.rmtree(root / name, ignore_errors=True)
    return gone


def _checkpoints(root: Path, pattern: re.Pattern[str]) -> dict[str, tuple[int, str]]:
    """(step, lineage) of the folders whose names have this form."""
    found = ((path.name, pattern.fullmatch(path.name)) for path in root.iterdir())
    return {name: (int(m[1]), m[2]) for name, m in found if m}


def _write_manifest(folder: Path) -> None:
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            opened_by_umask(path)
            name = str(path.relative_to(folder))
            files[name] = {"bytes": path.stat().st_size, "xxh3": checksum(path)}
        fsync(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"schema": SCHEMA, "files": files}, indent=2) + "\n")
    fsync(manifest)
    fsync(folder)


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state
