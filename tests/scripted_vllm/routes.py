"""The routes of the stand-in that the rollout process uses."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from safetensors import safe_open

from rollout.vllm_plugin.weight_file import WEIGHTS_KEPT, UnusableFile, check_tensors, read_tensors
from rollout.vllm_plugin.wire import (
    CAPACITY,
    GENERATE,
    MESSAGE,
    STREAM,
    UNFINISHED,
    Capacity,
    GenerateAnswer,
    GenerateRequest,
    Parsed,
)
from services.contracts.canary import CANARY, Canary
from services.weights import DeltaReader, UnusableBase, UnusableDelta, WholeVersion
from tests.scripted_vllm.sampling import (
    STEP_SECONDS,
    counted,
    decoded,
    grown,
    message_of,
    one_sample,
    scores,
)
from tests.scripted_vllm.script import Asked, State


def read_all(path: Path, deltas: list[str]) -> None:
    """Read a version as vLLM does. Raises UnusableFile for one that is another than its last delta
    says."""
    with ExitStack() as stack:
        try:
            opened = [stack.enter_context(DeltaReader(Path(delta))) for delta in deltas]
            if opened:
                version = WholeVersion(path, opened)
                for name in version.shapes:
                    version.tensor(name)
        except (UnusableBase, UnusableDelta) as error:
            raise UnusableFile(str(error)) from error


def canary_in(file: Path) -> Canary | None:
    """The canary in a weight file's metadata."""
    with safe_open(file, framework="numpy") as weights:
        text = (weights.metadata() or {}).get(CANARY)
    return None if text is None else msgspec.json.decode(text, type=Canary)


async def until(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds; looked at between steps, as an engine does."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(STEP_SECONDS)


def write_down(file: Path, body: GenerateRequest) -> None:
    """Append what a request asks for."""
    line = {"prompt": body.token_ids, "seed": body.sampling.get("seed")}
    with file.open("a") as requests:
        requests.write(json.dumps(line) + "\n")


def error(status: int, message: str) -> JSONResponse:
    """An error in vLLM's shape."""
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status)


def build(state: State) -> FastAPI:
    """The routes that the rollout process uses."""

    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"data": [{"id": "policy", "max_model_len": state.context}]}

    @app.get(UNFINISHED)
    async def unfinished() -> PlainTextResponse:
        return PlainTextResponse(str(state.unfinished))

    @app.get(CAPACITY)
    async def capacity() -> Response:
        most = state.most or state.script.sequences
        return Response(msgspec.msgpack.encode(Capacity(most, state.script.cache_tokens)))

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        labels = '{engine="0",model_name="policy"}'
        found = {
            "generation_tokens_total": state.tokens,
            "num_requests_running": state.unfinished,
            "num_requests_waiting": 0,
        }
        return PlainTextResponse(
            "".join(f"vllm:{name}{labels} {value}.0\n" for name, value in found.items())
        )

    @app.post(GENERATE)
    async def generate(request: Request) -> Any:
        body = msgspec.msgpack.decode(await request.body(), type=GenerateRequest)
        params = body.sampling
        room = state.context - len(body.token_ids)
        if room < 1:
            return error(400, f"the prompt exceeds the context of {state.context} tokens")
        await until(lambda: state.admitting)
        if params.get("prompt_logprobs") is not None:
            scored = GenerateAnswer([], scores(state, body.token_ids))
            return Response(msgspec.msgpack.encode(scored))
        id, asked = body.id, Asked()
        state.salts.append((body.cache_salt, state.version))
        if state.script.requests:
            write_down(Path(state.script.requests), body)
        state.requests[id] = asked
        try:
            n = params.get("n", 1)
            prompt = body.token_ids
            samples = [
                counted(state, one_sample(state, asked, params, i, prompt)) for i in range(n)
            ]
            answer = GenerateAnswer(list(await asyncio.gather(*samples)))
            return Response(msgspec.msgpack.encode(answer))
        finally:
            del state.requests[id]

    @app.post(STREAM)
    async def stream(request: Request) -> Any:
        body = msgspec.msgpack.decode(await request.body(), type=GenerateRequest)
        if state.context - len(body.token_ids) < 1:
            return error(400, f"the prompt exceeds the context of {state.context} tokens")
        await until(lambda: state.admitting)
        if state.script.requests:
            write_down(Path(state.script.requests), body)

        async def lines() -> AsyncIterator[bytes]:
            asked = state.requests[body.id] = Asked()
            try:
                async for line in grown(state, asked, body.sampling, body.token_ids):
                    yield line
            finally:
                del state.requests[body.id]

        return StreamingResponse(lines())

    @app.post(MESSAGE)
    async def message(request: Request) -> dict[str, Any]:
        parsed = msgspec.msgpack.decode(await request.body(), type=Parsed)
        return message_of(decoded(state, parsed.token_ids))

    @app.post("/abort_requests")
    async def abort(request: Request) -> dict[str, str]:
        for id in (await request.json())["request_ids"]:
            if asked := state.requests.get(id):
                asked.aborted = True
        return {"status": "aborted"}

    @app.post("/pause")
    async def pause(mode: str) -> dict[str, str]:
        state.admitting = False
        for asked in state.requests.values():
            asked.aborted |= mode == "abort"
        if mode != "keep":
            await until(lambda: not state.requests)
        state.running = False
        return {"status": "paused"}

    @app.post("/resume")
    async def resume() -> dict[str, str]:
        if state.asleep:
            # The engine would read weights that are not there.
            os._exit(1)
        state.admitting = state.running = True
        return {"status": "resumed"}

    @app.post("/sleep")
    async def sleep(level: int = 1, mode: str = "abort") -> Any:
        # As vLLM's `EngineCore.sleep`: it pauses, which takes requests in and begins none, and then
        # only a server with the memory pool of sleep mode gives its memory back.
        await pause(mode)
        if level > 0:
            state.prefixes.clear()
            if not state.may_sleep:
                return error(500, "sleep mode is not enabled")
            state.asleep = True
        return {"status": "sleeping", "level": level}

    @app.post("/wake_up")
    async def wake_up() -> dict[str, str]:
        await asyncio.sleep(state.script.update_seconds)
        state.asleep = False
        if state.script.goes_back:
            state.canary = state.before
        return await resume()

    @app.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        return {"is_sleeping": not state.admitting or state.asleep}

    @app.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        return {"is_paused": not state.admitting}

    @app.get("/salts")
    async def salts() -> list[tuple[str, str]]:
        return state.salts

    @app.post("/init_weight_transfer_engine")
    async def init() -> dict[str, str]:
        return {}

    @app.post("/start_weight_update")
    async def start() -> Any:
        if state.updating:
            return error(500, "start_weight_update called while an update is already active")
        state.updating = True
        return {}

    @app.post("/update_weights")
    async def update(request: Request) -> Any:
        info = (await request.json())["update_info"]
        if state.asleep:
            # A sleeping engine's parameters have no memory, so a load kills it.
            os._exit(1)
        await asyncio.sleep(state.script.update_seconds)
        try:
            tensors = read_tensors(Path(info["path"]))
            if len(tensors) != info["tensors"]:
                raise UnusableFile(f"{len(tensors)} tensors, manifest says {info['tensors']}")
            read_all(Path(info["path"]), info["deltas"])
            if state.loaded is not None:
                check_tensors(Path(info["path"]), tensors, state.loaded)
        except UnusableFile as broken:
            state.updating = False
            return error(500, f"{WEIGHTS_KEPT}: {broken}")
        state.loaded, state.before = tensors, state.canary
        if state.updates not in state.script.ignored_updates:
            state.canary = canary_in(Path([info["path"], *info["deltas"]][-1]))
        state.updates += 1
        return {}

    @app.post("/finish_weight_update")
    async def finish(request: Request) -> Any:
        if not state.updating:
            return error(500, "finish_weight_update called without start_weight_update")
        state.updating = False
        body = await request.body()
        state.version = (json.loads(body) if body else {}).get("weight_version") or state.version
        if not state.script.keeps_prefixes:
            state.prefixes.clear()
        return {}

    @app.get("/weight_info")
    async def weight_info() -> dict[str, str]:
        return {"weight_version": state.version}

    return app
