"""`python -m learner.tools.rounding DTYPE FOLDER`: round the weights in a model's folder to a type.

Prints the rounding loss to stdout.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from learner.checkpoints.checkpoint_writer import WEIGHTS
from learner.errors import UnusableModel
from learner.model.loading.spellings import with_dtype_named
from services.models.folder import CONFIG
from services.volume import opened_by_umask

TYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32")}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m learner.tools.rounding", description=__doc__)
    parser.add_argument("dtype", choices=TYPES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    try:
        print(round_folder(options.folder, TYPES[options.dtype]).words)
    except UnusableModel as error:
        print(error, file=sys.stderr)
        return 2
    return 0


@dataclass
class RoundingLoss:
    dtype: torch.dtype
    weights: int = 0
    rounded: int = 0
    zeroed: int = 0
    """Weights that were not 0 and became 0."""
    furthest: float = 0.0
    """The largest relative change of a weight that did not become 0."""

    def round(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return `tensor` in the type. Raises UnusableModel for a weight that the type cannot
        hold."""
        if not tensor.is_floating_point():
            return tensor
        after = tensor.to(self.dtype)
        exact, near = tensor.double(), after.double()
        if not torch.equal(near.isfinite(), exact.isfinite()):
            raise UnusableModel(
                f"{name} has weights up to {exact.abs().max():.3g}, and {self} ends at "
                f"{torch.finfo(self.dtype).max:.3g}: export it as bfloat16 or float32"
            )
        changed = near != exact
        became_zero = changed & (near == 0)
        moved = changed & ~became_zero
        self.weights += tensor.numel()
        self.rounded += int(changed.sum())
        self.zeroed += int(became_zero.sum())
        if moved.any():
            change = ((near[moved] - exact[moved]) / exact[moved]).abs().max()
            self.furthest = max(self.furthest, float(change))
        return after

    def __str__(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def words(self) -> str:
        if not self.rounded:
            return f"{self}: every weight kept its value"
        zeroed = f"; {self.zeroed:,} became 0" if self.zeroed else ""
        return (
            f"{self}: {self.rounded:,} of {self.weights:,} weights were rounded, by at most "
            f"{self.furthest:.2%}{zeroed}"
        )


def round_folder(folder: Path, dtype: torch.dtype) -> RoundingLoss:
    """Round the weights in `folder`, a model or an adapter, file by file. Raises UnusableModel."""
    loss = RoundingLoss(dtype)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            tensors = {name: loss.round(name, file.get_tensor(name)) for name in names}
        save_file(tensors, path, metadata={"format": "pt"})
        opened_by_umask(path)
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file():
        content = json.loads(index.read_text())
        sizes = (folder.joinpath(name).stat().st_size for name in {*content["weight_map"].values()})
        content["metadata"] = {**content.get("metadata", {}), "total_size": sum(sizes)}
        index.write_text(json.dumps(content, indent=2) + "\n")
    if (config := folder / CONFIG).is_file():
        named = with_dtype_named(json.loads(config.read_text()), str(loss))
        config.write_text(json.dumps(named, indent=2) + "\n")
    return loss


if __name__ == "__main__":
    sys.exit(main())
