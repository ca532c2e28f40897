"""`python -m tests.scripted_vllm`: the stand-in, with vLLM's command line."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from types import FrameType

import uvicorn
from tokenizers import Tokenizer

from tests.scripted_vllm.routes import build
from tests.scripted_vllm.script import Script, State


class Server(uvicorn.Server):
    """Ends at a signal at once, as vLLM does when its client has gone."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        os._exit(0)


def tokenizer_of(model: Path) -> Tokenizer | None:
    """The model's tokenizer, if it has one. The model's folder may be deleted while vLLM runs."""
    file = model / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.is_file() else None


def main() -> None:
    """Parse the part of vLLM's command line that matters here, and serve."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--uds", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int, default=0)
    parser.add_argument("--enable-return-routed-experts", action="store_true")
    parser.add_argument("--enable-sleep-mode", action="store_true")
    known, _ = parser.parse_known_args()
    script = Script(**json.loads(os.environ.get("HEADRACE_SCRIPTED_VLLM", "{}")))
    # As in vLLM, which deletes this folder only at an orderly end.
    tempfile.mkdtemp(prefix="vllm_dist_")
    if script.fail_start:
        sys.exit(f"ValueError: {script.fail_start}")
    config = json.loads((known.model / "config.json").read_text())
    derived = config.get("max_position_embeddings", 512)
    if known.max_model_len and known.max_model_len > derived:
        sys.exit(
            f"ValueError: User-specified max_model_len ({known.max_model_len}) is greater than the "
            f"derived max_model_len (max_position_embeddings={derived})"
        )
    context = known.max_model_len or derived
    layers = config["num_hidden_layers"] if known.enable_return_routed_experts else 0
    serving = uvicorn.Config(
        build(
            State(
                script,
                context,
                known.model,
                known.max_num_seqs,
                layers,
                may_sleep=known.enable_sleep_mode,
                tokenizer=tokenizer_of(known.model),
            )
        ),
        uds=known.uds,
        log_level="warning",
        timeout_keep_alive=3600,
    )
    Server(serving).run()


if __name__ == "__main__":
    main()
