"""vLLM's server, which also writes down what it is asked to sample, and what it answers.

Start it as the worker would start vLLM: HEADRACE_VLLM_COMMAND="python -m tests.e2e.recorded_vllm".
HEADRACE_RECORDED_VLLM names the file: one JSON object a line with a sample's `prompt` and `sampled`
ids.
"""

import json
import os
import runpy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollout.vllm_plugin import generate
from rollout.vllm_plugin.wire import ID, Answer, Request

FILE = "HEADRACE_RECORDED_VLLM"
_answer = generate._answer


async def recorded(state: Any, body: bytes) -> tuple[int, bytes]:
    """As `generate._answer`."""
    status, content = await _answer(state, body)
    asked = msgspec.msgpack.decode(body, type=Request)
    if status == 200 and "prompt_logprobs" not in asked.sampling:
        note(asked, msgspec.msgpack.decode(content, type=Answer))
    return status, content


def note(asked: Request, answer: Answer) -> None:
    with Path(os.environ[FILE]).open("a") as file:
        for choice in answer.choices:
            sampled = np.frombuffer(choice.token_ids, ID).tolist()
            print(json.dumps({"prompt": asked.token_ids, "sampled": sampled}), file=file)


if __name__ == "__main__":
    generate._answer = recorded
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
