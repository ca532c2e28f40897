"""A server with vLLM's HTTP surface that sleeps in place of a GPU (`simulated_gpus`).

Started as the worker starts vLLM: HEADRACE_VLLM_COMMAND="python -m bench.simulated_vllm". Sequences
in flight go on over an update of the weights, as in the mode `keep`; an update costs nothing.
"""

import argparse
import asyncio
import math
import time
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response

from bench.simulated_gpus import LONGEST, SEQUENCES, TOKEN_SECONDS, lengths


class Engine:
    """One GPU."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(SEQUENCES)
        self._versions = [(0.0, "default")]
        self.running = 0
        self.waiting = 0
        self.tokens = 0

    @property
    def version(self) -> str:
        """What the next token is sampled under."""
        return self._versions[-1][1]

    def update(self, version: str) -> None:
        """From now on tokens are of `version`."""
        self._versions.append((time.monotonic(), version))

    async def sample(self, index: int, length: int) -> dict[str, Any]:
        """One completion, in vLLM's words, when its time is over."""
        self.waiting += 1
        async with self._free:
            self.waiting -= 1
            self.running += 1
            began = time.monotonic()
            await asyncio.sleep(length * TOKEN_SECONDS)
            self.running -= 1
        self.tokens += length
        content = [{"token_id": 4, "logprob": -1.0, "rank": 1, "top_logprobs": []}] * length
        return {
            "index": index,
            "token_ids": [4] * length,
            "finish_reason": "length" if length == LONGEST else "stop",
            "logprobs": {"content": content},
            "weight_versions": spans(self._versions, began, length),
        }


def spans(versions: list[tuple[float, str]], began: float, length: int) -> list[dict[str, Any]]:
    """Which version sampled which tokens. `versions`: (when it became live, tag), oldest first."""
    starts = [min(length, max(0, math.ceil((at - began) / TOKEN_SECONDS))) for at, _ in versions]
    ends = [*starts[1:], length]
    return [
        {"version": tag, "start": start, "end": end}
        for (_, tag), start, end in zip(versions, starts, ends, strict=True)
        if start < end
    ]


def build(engine: Engine, context: int) -> FastAPI:
    """The routes that the rollout process uses."""
    app = FastAPI()

    def answer(content: Any) -> Response:
        return Response(msgspec.json.encode(content), media_type="application/json")

    @app.get("/health")
    async def health() -> Response:
        return answer({})

    @app.get("/v1/models")
    async def models() -> Response:
        return answer({"data": [{"id": "policy", "max_model_len": context}]})

    @app.get("/weight_info")
    async def weight_info() -> Response:
        return answer({"weight_version": engine.version})

    @app.get("/metrics")
    async def metrics() -> Response:
        # A server that sleeps makes progress as long as it answers.
        labels = '{engine="0",model_name="policy"}'
        found = {
            "generation_tokens_total": engine.tokens + round(time.monotonic()),
            "num_requests_running": engine.running,
            "num_requests_waiting": engine.waiting,
        }
        lines = [f"vllm:{name}{labels} {float(value)}\n" for name, value in found.items()]
        return Response("".join(lines), media_type="text/plain")

    @app.post("/inference/v1/generate")
    async def generate(request: Request) -> Response:
        body = msgspec.json.decode(await request.body())
        wanted = lengths(str(body["token_ids"]))[: body["sampling_params"]["n"]]
        samples = (engine.sample(index, length) for index, length in enumerate(wanted))
        return answer({"choices": await asyncio.gather(*samples)})

    @app.post("/finish_weight_update")
    async def finish(request: Request) -> Response:
        body = await request.body()
        if body:
            engine.update(msgspec.json.decode(body)["weight_version"])
        return answer({})

    @app.post("/{what}")
    async def control(what: str) -> Response:
        return answer({})

    return app


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    known, _ = parser.parse_known_args()

    async def serve() -> None:
        app = build(Engine(), known.max_model_len)
        config = uvicorn.Config(
            app, known.host, known.port, log_level="warning", timeout_keep_alive=3600
        )
        await uvicorn.Server(config).serve()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
