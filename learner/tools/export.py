"""`python -m learner.tools.export CHECKPOINT FOLDER`: a LoRA checkpoint as one whole model.

The adapter is added in float32, and the sum is rounded to the type that the base was published in.
"""

import argparse
import sys
from pathlib import Path

from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.utils.logging import disable_progress_bar

from learner.errors import UnusableModel
from learner.model.loading.folders import find_source
from learner.model.loading.models import DTYPES, load_model
from learner.model.loading.saving import save_description, weight_tensors
from learner.persist.checkpoint_parts import WEIGHTS
from services.contracts.config.model import PretrainedModel
from services.volume import opened_by_umask


def main(arguments: list[str] | None = None) -> int:
    """Write the folder, which must not be there. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m learner.tools.export", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    disable_progress_bar()
    try:
        merge(options.checkpoint, options.folder)
    except UnusableModel as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def merge(checkpoint: Path, folder: Path) -> None:
    """The model that the adapter in `checkpoint` makes of its base, into `folder`. Raises
    UnusableModel."""
    loaded = load_model(str(checkpoint), PretrainedModel(path=str(checkpoint)))
    published = AutoConfig.from_pretrained(find_source(str(checkpoint), False).weights).dtype
    if published in DTYPES.values():
        loaded.publish_dtype = published
    folder.mkdir()
    save_description(loaded, folder)
    tensors = {
        name: tensor.to(loaded.publish_dtype).contiguous()
        for name, tensor in weight_tensors(loaded.model).items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    opened_by_umask(folder / WEIGHTS)


if __name__ == "__main__":
    sys.exit(main())
