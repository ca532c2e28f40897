"""Read checkpoints: verify them first, then load them on any number of ranks, each rank its
rows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from learner.checkpoints.checkpoint_writer import COPY, OPTIMIZER, RANDOM, STATE
from learner.errors import RunCannotGoOn
from learner.optim.optimizers import Optimizers
from learner.slices import WHOLE, RankPart, as_slice, row_range, rows_of
from learner.state import SCHEMA, TrainingProgress
from services.contracts.schema import require_schema
from services.volume import DamagedFile, check_file
from services.volume.checkpoint import listed_files


class UnusableCheckpoint(RunCannotGoOn):
    """A checkpoint folder is incomplete or damaged. The message names the file."""


def verify(folder: Path, part: RankPart = WHOLE) -> TrainingProgress:
    """Verify a checkpoint and return its progress. This rank reads `part` of its files. Raises
    UnusableCheckpoint, which names the problem, and SchemaMismatch."""
    check_listed(folder, part)
    try:
        raw = msgspec.json.decode((folder / STATE).read_bytes())
        require_schema(f"checkpoint {folder.name}", raw.get("schema"), SCHEMA)
        return msgspec.convert(raw, TrainingProgress)
    except FileNotFoundError as error:
        raise UnusableCheckpoint(f"checkpoint {folder.name} lacks {STATE}") from error
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError) as error:
        raise UnusableCheckpoint(f"checkpoint {folder.name} is damaged: {error}") from error


def check_listed(folder: Path, part: RankPart = WHOLE) -> None:
    """Compare the files of a checkpoint with its manifest. This rank reads `part` of them. Raises
    UnusableCheckpoint."""
    try:
        # The largest file first, dealt to the ranks in turn.
        files = [file for file in listed_files(folder) if file.needed]
        for number, (name, size, xxh3) in enumerate(files):
            reads = number % part.count == part.number
            check_file(folder / name, size, xxh3 if reads else None, name)
    except FileNotFoundError as error:
        raise UnusableCheckpoint(
            f"checkpoint {folder.name} lacks {_within(folder, error)}"
        ) from error
    except DamagedFile as error:
        raise UnusableCheckpoint(f"checkpoint {folder.name} is damaged: {error}") from error


def _within(folder: Path, error: FileNotFoundError) -> Path:
    path = Path(str(error.filename))
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def load_optimizer(folder: Path, optimizers: Optimizers, name: str = OPTIMIZER) -> None:
    """Load the state of the policy's or the critic's optimizers from a verified checkpoint. If the
    state is sharded, load this rank's rows."""
    parameters = optimizers.parameters
    with _usable(folder):
        optimizers.load(read(folder / name, lambda key: parameters.get(key.rpartition("/")[0])))


def load_random_state(folder: Path) -> None:
    with _usable(folder):
        random = load_file(folder / RANDOM)
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])


@torch.no_grad()
def load_copy(folder: Path, name: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Load the copy `name` of the policy into `weights`. Do nothing if the verified checkpoint has
    no such copy, because its config had none."""
    if not files_of(path := folder / COPY.format(name)):
        return
    with _usable(folder):
        saved = read(path, weights.get)
        if saved.keys() != weights.keys():
            raise ValueError(f"{path.name} has other weights than the model")
        for key, weight in weights.items():
            weight.copy_(rows_of(saved[key], weight))


def files_of(path: Path) -> list[Path]:
    """Return the file `path`, or the parts that ranks wrote instead, or an empty list."""
    if path.exists():
        return [path]
    return sorted(path.parent.glob(f"{path.stem}-?????-of-?????{path.suffix}"))


def read(path: Path, target: Callable[[str], torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Return the tensors of `files_of(path)`. If `target` returns a sharded tensor of the same
    shape, return this rank's rows. Raises FileNotFoundError."""
    if not (files := files_of(path)):
        raise FileNotFoundError(f"{path.name} is not there")
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        with safe_open(file, framework="pt") as saved:
            for key in saved.keys():  # noqa: SIM118
                rows, like = saved.get_slice(key), target(key)
                if isinstance(like, DTensor) and list(like.shape) == rows.get_shape():
                    start, stop = row_range(like)
                    tensors[key] = as_slice(rows[start:stop], like)
                else:
                    tensors[key] = saved.get_tensor(key)
    return tensors


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, FileNotFoundError, ValueError) as error:
        raise UnusableCheckpoint(f"checkpoint {folder.name} cannot be used: {error}") from error
