"""`python -m learner.tools.unpack_gguf PACKAGES FILE FOLDER`: write the model of a GGUF file as a
folder in Hugging Face layout, with weights in float32.

PACKAGES is a folder of Python packages with `gguf`, which reads the file.
"""

import os
import sys
from pathlib import Path


def main() -> int:
    """Unpack the file that the arguments name. Returns the exit code."""
    packages, file, folder = sys.argv[1:]
    sys.path.insert(0, packages)
    os.environ.setdefault("TQDM_DISABLE", "1")
    # They look for `gguf` when they are imported.
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    source = Path(file)
    where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    read = AutoModelForCausalLM.from_pretrained(**where, dtype="float32")
    # Its config still names the packed form.
    del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
