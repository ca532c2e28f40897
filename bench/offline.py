"""`python -m bench.offline`: vLLM's own `LLM.generate` in a process that stays warm.

Each line of stdin is a JSON object: first the arguments of `LLM`, then requests. Each is answered
with a JSON object on stdout. vLLM's output goes to stderr. The process ends with its stdin.
"""

import json
import os
import sys
import time
from typing import Any

from services.runtime.process import die_with_parent


def main() -> None:
    """Load the model, then answer requests until stdin ends."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    from vllm import LLM, SamplingParams

    llm = LLM(**json.loads(sys.stdin.readline()))
    answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
        sampling = SamplingParams(**request["sampling"])
        began = time.monotonic()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.monotonic() - began
        tokens = sum(
            len(completion.token_ids) for output in outputs for completion in output.outputs
        )
        answer({"tokens": tokens, "seconds": seconds})


if __name__ == "__main__":
    main()
