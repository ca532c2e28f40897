"""A server with vLLM's HTTP surface that sleeps in place of a GPU (`gpus`).

The worker starts it like vLLM: HEADRACE_VLLM_COMMAND="python -m bench.simulated.vllm". Sequences in
flight go on over an update of the weights, as in the mode `keep`; an update costs nothing.
"""

import argparse
import asyncio
import math
import time
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response
from safetensors import safe_open

from bench.simulated.gpus import SEQUENCES, TOKEN_SECONDS, lengths
from rollout.vllm_plugin.wire import (
    CAPACITY,
    GENERATE,
    UNFINISHED,
    Capacity,
    Choice,
    GenerateAnswer,
    GenerateRequest,
    ids,
    logprobs,
)
from services.contracts.canary import CANARY, Canary, Floats, sequences, unpacked


class Engine:
    """One GPU."""

    def __init__(self, sequences: int, token_seconds: float) -> None:
        self.sequences, self._token_seconds = sequences, token_seconds
        self._free = asyncio.Semaphore(sequences)
        self.versions = [(0.0, "default")]
        """(when it became live, tag), oldest first; the last samples the next token."""
        self.running = self.waiting = self._done = 0
        self._begun: set[tuple[float, object]] = set()
        """When each sequence that runs was begun."""
        self.scores: dict[tuple[int, ...], Floats] = {}
        """The canary of the loaded version: what the learner expects of each sequence."""

    async def sample(self, index: int, length: int, longest: int) -> Choice:
        """One completion, when its time is over."""
        self.waiting += 1
        async with self._free:
            self.waiting -= 1
            self.running += 1
            began = time.monotonic()
            begun = began, object()
            self._begun.add(begun)
            await asyncio.sleep(length * self._token_seconds)
            self._begun.remove(begun)
            self.running -= 1
        self._done += length
        return Choice(
            index=index,
            finish_reason="length" if length == longest else "stop",
            token_ids=ids([4] * length),
            logprobs=logprobs([-1.0] * length),
            versions=spans(self.versions, began, length, self._token_seconds),
        )

    @property
    def tokens(self) -> int:
        """Sampled so far, those of sequences that run included."""
        now = time.monotonic()
        seconds = sum(now - began for began, _ in self._begun)
        return self._done + round(seconds / self._token_seconds)

    def metrics(self) -> str:
        """vLLM's metrics. A server that sleeps makes progress as long as it answers."""
        found = {
            "generation_tokens_total": self.tokens + round(time.monotonic()),
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
        }
        labels = '{engine="0",model_name="policy"}'
        return "".join(f"vllm:{name}{labels} {float(value)}\n" for name, value in found.items())


def spans(
    versions: list[tuple[float, str]],
    began: float,
    length: int,
    token_seconds: float = TOKEN_SECONDS,
) -> list[tuple[str, int, int]]:
    """Which version sampled which tokens. `versions`: (when it became live, tag), oldest first."""
    starts = [min(length, max(0, math.ceil((at - began) / token_seconds))) for at, _ in versions]
    return [
        (tag, start, end)
        for (_, tag), start, end in zip(versions, starts, [*starts[1:], length], strict=True)
        if start < end
    ]


def canary_scores(file: Path) -> dict[tuple[int, ...], Floats]:
    """The canary in a weight file's metadata: log-probabilities of its sequences."""
    with safe_open(file, framework="numpy") as weights:
        text = (weights.metadata() or {}).get(CANARY)
    if text is None:
        return {}
    canary, start, found = msgspec.json.decode(text, type=Canary), 0, {}
    values = unpacked(canary.logprobs)
    for tokens in sequences(canary.vocabulary, canary.longest):
        found[tuple(tokens)] = values[start : start + len(tokens) - 1]
        start += len(tokens) - 1
    return found


def build(engine: Engine, context: int) -> FastAPI:
    """The routes that the rollout process uses."""
    app = FastAPI()

    def answer(content: Any) -> Response:
        return Response(msgspec.json.encode(content), media_type="application/json")

    @app.get("/{path:path}")
    async def look(path: str) -> Response:
        if path == "metrics":
            return Response(engine.metrics(), media_type="text/plain")
        if f"/{path}" == UNFINISHED:
            return Response(str(engine.running + engine.waiting), media_type="text/plain")
        if f"/{path}" == CAPACITY:
            return Response(msgspec.msgpack.encode(Capacity(engine.sequences)))
        if path == "weight_info":
            return answer({"weight_version": engine.versions[-1][1]})
        return answer({"data": [{"id": "policy", "max_model_len": context}]})

    @app.post("/{path:path}")
    async def post(path: str, request: Request) -> Response:
        body = await request.body()
        if f"/{path}" == GENERATE:
            asked = msgspec.msgpack.decode(body, type=GenerateRequest)
            if "prompt_logprobs" in asked.sampling:
                scored = GenerateAnswer([], logprobs(engine.scores[tuple(asked.token_ids)]))
                return Response(msgspec.msgpack.encode(scored))
            chosen = lengths(str(asked.token_ids))[: asked.sampling["n"]]
            longest = asked.sampling["max_tokens"]
            samples = (
                engine.sample(index, min(length, longest), longest)
                for index, length in enumerate(chosen)
            )
            found = GenerateAnswer(list(await asyncio.gather(*samples)))
            return Response(msgspec.msgpack.encode(found))
        if path == "update_weights":
            info = msgspec.json.decode(body)["update_info"]
            engine.scores = canary_scores(Path([info["path"], *info["deltas"]][-1]))
        if path == "finish_weight_update" and body:
            version = msgspec.json.decode(body)["weight_version"]
            engine.versions.append((time.monotonic(), version))
        return answer({})

    return app


async def serve() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--uds", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=SEQUENCES)
    parser.add_argument("--token-seconds", type=float, default=TOKEN_SECONDS)
    known, _ = parser.parse_known_args()
    app = build(Engine(known.max_num_seqs, known.token_seconds), known.max_model_len)
    config = uvicorn.Config(app, uds=known.uds, log_level="warning", timeout_keep_alive=3600)
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(serve())
