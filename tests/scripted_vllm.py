"""A stand-in for vLLM with its HTTP surface, for tests that kill and restart things many times.

Start it as the worker would start vLLM: HEADRACE_VLLM_COMMAND="python -m tests.scripted_vllm".
Tokens are random (or from a script), one log-probability for all of them; what is real is
everything around: version spans per token, pause, resume, weight files that are read and checked,
the token counter, the context limit. Prompts are scored as the canary in the loaded file says.
Serves within a second.

HEADRACE_SCRIPTED_VLLM holds its script as JSON, the fields of `Script`.
"""

import argparse
import asyncio
import io
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from safetensors import safe_open
from tokenizers import Tokenizer

from rollout.vllm_plugin.weight_file import (
    WEIGHTS_KEPT,
    Tensors,
    UnusableFile,
    check_tensors,
    read_tensors,
)
from rollout.vllm_plugin.wire import (
    CAPACITY,
    GENERATE,
    LOWEST,
    MESSAGE,
    STREAM,
    UNFINISHED,
    Answer,
    Capacity,
    Choice,
    Delta,
    Parsed,
    ids,
    logprobs,
)
from rollout.vllm_plugin.wire import Request as GenerateRequest
from services.contracts.canary import CANARY, Canary, sequences, unpacked
from services.weights import DeltaReader, UnusableBase, UnusableDelta, WholeVersion

STEP_SECONDS = 0.01


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


@dataclass
class Script:
    """How the stand-in behaves."""

    vocabulary: int = 32
    tokens_per_second: float = 1000.0
    """Of each sequence, while nothing is paused."""
    replies: list[list[int]] = field(default_factory=list)
    """Completions to give, in turn; empty: random ones of random length."""
    fail_start: str = ""
    """Log this line and exit with code 1."""
    hang_after: int | None = None
    """Sample no more tokens once so many were sampled; go on answering everything else."""
    update_seconds: float = 0.0
    """How long a load of weights takes."""
    sequences: int = 256
    """Run at once, as far as the server says, unless `--max-num-seqs` names another number."""
    cache_tokens: int | None = None
    """What its cache holds, as far as it says."""
    ignored_updates: list[int] = field(default_factory=list)
    """Updates, counted from 0, after which it serves the weights of before."""
    keeps_prefixes: bool = False
    """Scores a prompt as it did first, whatever was loaded since."""
    score_error: float = 0.0
    """Nats by which its scores of prompts are wrong."""
    requests: str = ""
    """A file to which prompt and seed of each request are appended, one JSON object a line."""


@dataclass
class State:
    """What the server knows."""

    script: Script
    context: int
    model: Path
    most: int = 0
    """`--max-num-seqs`, if given."""
    layers: int = 0
    """Of which expert routing is returned."""
    version: str = "default"
    tokens: int = 0
    answered: int = 0
    unfinished: int = 0
    """Samples that were begun and have not ended."""
    loaded: Tensors | None = None
    canary: Canary | None = None
    """Of the weights that are served."""
    updates: int = 0
    prefixes: dict[tuple[int, ...], bytes] = field(default_factory=dict)
    """Prompts that were scored, and how."""
    updating: bool = False
    admitting: bool = True
    """Whether requests that come are begun."""
    running: bool = True
    """Whether tokens are sampled."""
    requests: dict[str, "Asked"] = field(default_factory=dict)
    """Those begun and not answered, by id."""
    tokenizer: Tokenizer | None = None
    """Of the model; loaded for the first request that stops at a text."""
    salts: list[tuple[str, str]] = field(default_factory=list)
    """(cache salt, version that was live when it was begun) of every request."""


@dataclass
class Asked:
    """One request."""

    aborted: bool = False


def routed_experts(tokens: list[int], layers: int) -> memoryview:
    """Routing as vLLM returns it: token t goes to the experts t and t + 1 + layer (of 256). The
    last one has been through no layer yet."""
    layer = np.arange(1, layers + 1)
    ids = np.array(tokens[:-1])[:, None] + np.zeros(layers, int)
    experts = np.stack([ids, ids + layer], -1).astype(np.uint8)
    file = io.BytesIO()
    np.save(file, experts)
    return file.getbuffer()


async def one_sample(
    state: State,
    asked: Asked,
    params: dict[str, Any],
    index: int,
    prompt: list[int],
    tell: Callable[[list[int]], None] = lambda tokens: None,
) -> Choice:
    """Sample token by token, noting under which version each was; `tell` hears of all tokens so
    far after each step."""
    room = state.context - len(prompt)
    script = state.script
    limit = min(params.get("max_tokens", 16), room)
    stops = set(params.get("stop_token_ids", []))
    texts = params.get("stop", [])
    script_number = state.answered
    state.answered += 1
    reply = script.replies[script_number % len(script.replies)] if script.replies else None
    seed = params.get("seed")
    source = random.Random(seed + index if seed is not None else None)
    tokens: list[int] = []
    spans: list[tuple[str, int, int]] = []
    finish = "length"
    per_step = max(1, round(script.tokens_per_second * STEP_SECONDS))
    while len(tokens) < limit and finish == "length":
        await asyncio.sleep(max(STEP_SECONDS, 1 / script.tokens_per_second))
        if asked.aborted:
            finish = "abort"
            break
        if not state.running:
            continue
        if script.hang_after is not None and state.tokens >= script.hang_after:
            continue
        for _ in range(min(per_step, limit - len(tokens))):
            token = reply[len(tokens)] if reply else source.randrange(script.vocabulary)
            start = len(tokens)
            if spans and spans[-1][0] == state.version:
                start = spans.pop()[1]
            spans.append((state.version, start, len(tokens) + 1))
            tokens.append(token)
            state.tokens += 1
            said = any(text in decoded(state, tokens) for text in texts)
            if token in stops or said or (reply and len(tokens) == len(reply)):
                finish = "stop"
                break
        tell(tokens)
    made = Choice(
        index=index,
        finish_reason=finish,
        token_ids=ids(tokens),
        logprobs=logprobs([-math.log(kept_of(script, params))] * len(tokens)),
        versions=spans,
    )
    if asked_for := params.get("logprobs", 0):
        found = [one for token in tokens for one in candidates(script, params, token)]
        made.counts = ids([asked_for] * len(tokens))
        made.candidates = ids([token for token, _ in found])
        made.candidate_logprobs = logprobs([logprob for _, logprob in found])
    if state.layers:
        made.experts = routed_experts(prompt + tokens, state.layers)
    return made


def kept_of(script: Script, params: dict[str, Any]) -> int:
    """From how many tokens each is chosen."""
    return min(params.get("top_k") or script.vocabulary, script.vocabulary)


def candidates(script: Script, params: dict[str, Any], token: int) -> list[tuple[int, float]]:
    """As many as were asked for: the token and those that follow it are as likely as each other,
    those that `top_k` cuts off are impossible."""
    kept, asked = kept_of(script, params), params["logprobs"]
    return [
        ((token + i) % max(asked, script.vocabulary), -math.log(kept) if i < kept else LOWEST)
        for i in range(asked)
    ]


def scores(state: State, params: dict[str, Any], prompt: list[int]) -> bytes:
    """Log-probabilities of the prompt but its first token."""
    if state.canary is None:
        return b""
    canary, start, found = state.canary, 0, b""
    for tokens in sequences(canary.vocabulary, canary.longest):
        values = unpacked(canary.logprobs)[start : (start := start + len(tokens) - 1)]
        values = values + state.script.score_error
        if tokens == prompt:
            found = logprobs(values)
    if found and not params["skip_reading_prefix_cache"]:
        return state.prefixes.setdefault(tuple(prompt), found)
    return found


def canary_in(file: Path) -> Canary | None:
    """The canary in a weight file's metadata."""
    with safe_open(file, framework="numpy") as weights:
        text = (weights.metadata() or {}).get(CANARY)
    return None if text is None else msgspec.json.decode(text, type=Canary)


async def grown(
    state: State, asked: Asked, params: dict[str, Any], prompt: list[int]
) -> AsyncIterator[bytes]:
    """One sample in lines of JSON, as it grows."""
    steps: asyncio.Queue[int] = asyncio.Queue()
    sampled: list[int] = []

    def tell(tokens: list[int]) -> None:
        sampled[:] = tokens
        steps.put_nowait(len(tokens))

    sample = asyncio.create_task(counted(state, one_sample(state, asked, params, 0, prompt, tell)))
    sample.add_done_callback(lambda _: steps.put_nowait(0))
    told, text = 0, ""
    try:
        while await steps.get():
            whole = decoded(state, sampled)
            delta = Delta(whole.removeprefix(text), sampled[told:])
            told, text = len(sampled), whole
            yield msgspec.json.encode(delta) + b"\n"
        made = await sample
        end = Delta(finish_reason=made.finish_reason, versions=made.versions)
        yield msgspec.json.encode(end) + b"\n"
    finally:
        sample.cancel()


def decoded(state: State, tokens: list[int]) -> str:
    """The text of `tokens`, special ones included."""
    if state.tokenizer is None:
        state.tokenizer = Tokenizer.from_file(str(state.model / "tokenizer.json"))
    return str(state.tokenizer.decode(tokens, skip_special_tokens=False))


def message_of(text: str) -> dict[str, Any]:
    """An answer as vLLM's parser `hermes` reads it."""
    content, *rest = text.split("<tool_call>")
    calls = [json.loads(one.partition("</tool_call>")[0]) for one in rest]
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [
            {
                "id": f"call-{number}",
                "type": "function",
                "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])},
            }
            for number, one in enumerate(calls)
        ],
    }


async def counted(state: State, sample: Awaitable[Choice]) -> Choice:
    """The sample, which is unfinished until it is there."""
    state.unfinished += 1
    try:
        return await sample
    finally:
        state.unfinished -= 1


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
            scored = Answer([], scores(state, params, body.token_ids))
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
            answer = Answer(list(await asyncio.gather(*samples)))
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
        state.admitting = state.running = True
        return {"status": "resumed"}

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
        state.loaded = tensors
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


class Server(uvicorn.Server):
    """Ends at a signal at once, as vLLM does when its client has gone."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        os._exit(0)


def main() -> None:
    """Parse the part of vLLM's command line that matters here, and serve."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--uds", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int, default=0)
    parser.add_argument("--enable-return-routed-experts", action="store_true")
    known, _ = parser.parse_known_args()
    script = Script(**json.loads(os.environ.get("HEADRACE_SCRIPTED_VLLM", "{}")))
    # Like vLLM, which deletes it only where it ends in order.
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
        build(State(script, context, known.model, known.max_num_seqs, layers)),
        uds=known.uds,
        log_level="warning",
        timeout_keep_alive=3600,
    )
    Server(serving).run()


if __name__ == "__main__":
    main()
