"""vLLM's server, which also writes down what it is asked to sample, and what it answers.

Start it as the worker would start vLLM: HEADRACE_VLLM_COMMAND="python -m tests.e2e.recorded_vllm".
HEADRACE_RECORDED_VLLM names the file: one JSON object a line with a sample's `prompt` and `sampled`
ids.
"""

import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollout.vllm_plugin.wire import ID, GenerateAnswer, GenerateRequest

FILE = "HEADRACE_RECORDED_VLLM"
Answering = Callable[[Any, bytes], Coroutine[Any, Any, tuple[int, bytes]]]


def recorded(answer: Answering) -> Answering:
    """`generate._answer`, and a note of each."""

    async def answer_and_note(state: Any, body: bytes) -> tuple[int, bytes]:
        status, content = await answer(state, body)
        asked = msgspec.msgpack.decode(body, type=GenerateRequest)
        if status == 200 and "prompt_logprobs" not in asked.sampling:
            note(asked, msgspec.msgpack.decode(content, type=GenerateAnswer))
        return status, content

    return answer_and_note


def note(asked: GenerateRequest, answer: GenerateAnswer) -> None:
    with Path(os.environ[FILE]).open("a") as file:
        for choice in answer.choices:
            sampled = np.frombuffer(choice.token_ids, ID).tolist()
            print(json.dumps({"prompt": asked.token_ids, "sampled": sampled}), file=file)


if __name__ == "__main__":
    # The import of vLLM takes seconds. vLLM's other processes do not need it, and the test needs
    # only a name from this file.
    from rollout.vllm_plugin import generate

    generate._answer = recorded(generate._answer)  # type: ignore[assignment]
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
