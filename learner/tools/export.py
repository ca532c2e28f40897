"""`python -m learner.tools.export CHECKPOINT FOLDER`: export a LoRA checkpoint as one whole model.

The adapter is added in float32, and the sum is rounded to --dtype, else to the type in which the
base was published. Prints the rounding loss to stdout.
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.utils.logging import disable_progress_bar

from learner.checkpoints.checkpoint_writer import WEIGHTS
from learner.errors import UnusableModel
from learner.model.loading.folders import find_source
from learner.model.loading.model_loader import load_model
from learner.model.loading.saving import as_in_a_folder, save_description, weight_tensors
from learner.tools.rounding import TYPES, RoundingLoss
from services.contracts.config.model import PretrainedModel
from services.volume import opened_by_umask


def main(arguments: list[str] | None = None) -> int:
    """Write the folder, which must not exist yet. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m learner.tools.export", description=__doc__)
    parser.add_argument("--dtype", choices=TYPES)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    disable_progress_bar()
    try:
        loss = merge(options.checkpoint, options.folder, TYPES.get(options.dtype))
    except UnusableModel as error:
        print(error, file=sys.stderr)
        return 2
    print(loss.words)
    return 0


def merge(checkpoint: Path, folder: Path, dtype: torch.dtype | None = None) -> RoundingLoss:
    """Merge the adapter in `checkpoint` into its base, and write the model into the new `folder`,
    in `dtype` or else in the base's type. Raises UnusableModel."""
    loaded = load_model(str(checkpoint), PretrainedModel(path=str(checkpoint)))
    published = AutoConfig.from_pretrained(find_source(str(checkpoint), False).weights).dtype
    if published in TYPES.values():
        loaded.publish_dtype = published
    loaded.publish_dtype = dtype or loaded.publish_dtype
    loss = RoundingLoss(loaded.publish_dtype)
    folder.mkdir()
    save_description(loaded, folder)
    tensors = {
        name: loss.round(name, tensor).contiguous()
        for name, tensor in as_in_a_folder(loaded.model, weight_tensors(loaded.model)).items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    opened_by_umask(folder / WEIGHTS)
    return loss


if __name__ == "__main__":
    sys.exit(main())
