"""A real vLLM server under the rollout process: what is sampled, and what a weight update does."""

import asyncio
import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from rollout.vllm.client.policy_client import Interrupted, PolicyClient, RequestRefused
from rollout.vllm.client.response import (
    Sample,
    parse_answer,
    request_body,
    sampling_params,
    stopping_after,
)
from rollout.vllm.client.weight_loader import LoadRefused, UpdateMode
from rollout.vllm.model_files import load_tokenizer, vocabulary
from rollout.vllm.process.options import ServerConfig
from rollout.vllm.process.server import VLLMFailed, VLLMServer
from rollout.vllm.weights.canary_check import CanaryCheck
from rollout.vllm_plugin.wire import GENERATE
from rollout.work.group_assembly import Origin
from rollout.work.partial_group import begun_group, partial_group
from services.contracts.canary import Canary, packed, sequences
from services.contracts.config.rollout import Sampling
from services.contracts.config.vllm import VLLM
from services.contracts.groups.trajectory import decode, encode
from services.contracts.weights import WeightManifest
from services.runtime.gpus import installed_device
from tests.e2e.conftest import CONTEXT, VOCABULARY, TinyModel, snapshot
from tests.served import is_paused, live_version

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

PROMPT = [0, 4, 13, 5, 17]
SAMPLING = Sampling(temperature=0.8, max_tokens=48)


def reference_logits(
    model: TinyModel, weights: Path, prompt: list[int], tokens: Iterable[int]
) -> torch.Tensor:
    """[t, V] what transformers says before each of `tokens`."""
    policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model.folder)).float()
    policy.load_state_dict(load_file(weights), strict=False)
    policy.tie_weights()
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        return policy(ids).logits[0, len(prompt) - 1 : -1]


def reference_logprobs(
    model: TinyModel, weights: Path, prompt: list[int], tokens: list[int], temperature: float
) -> np.ndarray:
    """log π(token) by transformers, at the sampling temperature."""
    logits = reference_logits(model, weights, prompt, tokens) / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


async def assert_serves(
    policy: PolicyClient,
    model: TinyModel,
    weights: Path,
    n: int = 8,
    prompt: list[int] = PROMPT,
) -> list[Sample]:
    """Sample, and compare every log-probability with what `weights` give."""
    samples = await policy.generate(prompt, n, sampling_params(SAMPLING, [1], CONTEXT))
    assert len(samples) == n
    for sample in samples:
        expected = reference_logprobs(model, weights, prompt, sample.token_ids.tolist(), 0.8)
        assert np.abs(sample.logprobs - expected).max() <= 1e-3
    return samples


async def test_logprobs_are_those_of_transformers_on_the_same_weights(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    await assert_serves(policy, tiny_model, tiny_model.full_a)


async def test_tokens_left_by_top_k_and_top_p_are_reported_and_share_all_probability(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    cut = Sampling(temperature=0.8, top_k=5, top_p=0.6, max_tokens=48)
    params = sampling_params(cut, [1], CONTEXT, None, vocabulary(tiny_model.folder))

    for sample in await policy.generate(PROMPT, 8, params):
        every = reference_logits(tiny_model, tiny_model.full_a, PROMPT, sample.token_ids) / 0.8
        # From the five likeliest tokens, the fewest whose probabilities reach 0.6.
        best, ids = every.topk(6)
        chances = best[:, :5].softmax(-1)
        before = chances.cumsum(-1) - chances
        expected = [
            sorted(row[:5][inside].tolist()) for row, inside in zip(ids, before < 0.6, strict=True)
        ]
        assert sample.sampling_mask is not None
        found = [
            sample.sampling_mask.cut(i, i + 1).ids.tolist() for i in range(len(sample.token_ids))
        ]
        # Where rounding cannot decide.
        clear = ((before - 0.6).abs() > 1e-3).all(-1) & (best[:, 4] - best[:, 5] > 1e-3)
        assert clear.sum() > 0.8 * len(found)
        assert [ids for ids, sure in zip(found, clear, strict=True) if sure] == [
            ids for ids, sure in zip(expected, clear, strict=True) if sure
        ]
        assert max(map(len, found)) < 5
        among = [row[support].log_softmax(-1) for row, support in zip(every, found, strict=True)]
        chosen = zip(among, found, sample.token_ids.tolist(), strict=True)
        logprobs = [float(row[support.index(token)]) for row, support, token in chosen]
        assert np.abs(sample.logprobs - logprobs).max() <= 1e-3


async def test_a_schema_leaves_a_mask_of_what_it_and_top_k_allow(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    cut = Sampling(temperature=0.8, top_k=2, max_tokens=48)
    params = sampling_params(cut, [1], CONTEXT, None, vocabulary(tiny_model.folder))
    tokenizer, schema = load_tokenizer(tiny_model.folder), {"enum": [7, 42, 108]}
    constrained = {**params, "structured_outputs": {"json": schema}}
    ids = {**tokenizer.get_vocab(), "\n": 1}

    for sample in await policy.generate(PROMPT, 8, constrained):
        assert tokenizer.decode(sample.token_ids, skip_special_tokens=True) in ("7", "42", "108")
        assert (sample.finish_reason, sample.sampling_mask is None) == ("stop", False)
        every = reference_logits(tiny_model, tiny_model.full_a, PROMPT, sample.token_ids) / 0.8
        assert sample.sampling_mask is not None
        for place, token in enumerate(sample.token_ids.tolist()):
            found = sample.sampling_mask.cut(place, place + 1).ids.tolist()
            begun = tokenizer.decode(sample.token_ids[:place])
            nexts = {(text + "\n")[place] for text in ("7", "42", "108") if text.startswith(begun)}
            allowed = [ids[text] for text in nexts]
            assert found == sorted(sorted(allowed, key=lambda id: -every[place, id])[:2])
            logprobs = every[place, found].log_softmax(-1)
            assert abs(sample.logprobs[place] - float(logprobs[found.index(token)])) <= 1e-3
    # The vocabulary has no quotation mark.
    for wrong, said in (({"type": "nosuch"}, "nosuch"), ({"type": "string"}, "vocabulary")):
        with pytest.raises(RequestRefused, match=f"400 .*{said}"):
            await policy.generate(PROMPT, 1, {**params, "structured_outputs": {"json": wrong}})
    assert len(await policy.generate(PROMPT, 1, params)) == 1


async def test_a_completion_ends_behind_the_text_that_it_is_to_stop_at(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    tokenizer = load_tokenizer(tiny_model.folder)
    params = sampling_params(Sampling(temperature=2.0, max_tokens=400, ignore_eos=True), [1], 400)
    samples = await policy.generate(PROMPT, 16, stopping_after(params, "+", {}))

    texts = tokenizer.batch_decode([sample.token_ids for sample in samples])
    assert {sample.finish_reason for sample in samples} >= {"stop"}
    for sample, text in zip(samples, texts, strict=True):
        assert text.find("+") == (len(text) - 1 if sample.finish_reason == "stop" else -1)


async def test_end_of_sequence_is_sampled_scored_and_reported(policy: PolicyClient) -> None:
    params = sampling_params(Sampling(temperature=2.0, max_tokens=400), [1], 400)
    samples = await policy.generate(PROMPT, 16, params)

    ended = [sample for sample in samples if sample.finish_reason == "stop"]
    assert ended
    assert all(sample.token_ids[-1] == 1 for sample in ended)
    assert all(1 not in sample.token_ids[:-1] for sample in samples)


async def test_weights_that_change_in_flight_show_as_version_spans(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    params = sampling_params(Sampling(max_tokens=450, ignore_eos=True), [1], CONTEXT)
    before = (await policy.counters()).tokens
    request = asyncio.create_task(policy.generate(PROMPT, 4, params))
    while (await policy.counters()).tokens < before + 40:
        assert not request.done()

    paused = await policy.weights.load(snapshot(tiny_model, tiny_model.full_b, "aaaaaa:2"))

    for sample in await request:
        assert [span.version for span in sample.spans] == ["aaaaaa:1", "aaaaaa:2"]
        assert sample.spans[0].end == sample.spans[1].start
        assert sample.spans[1].end == len(sample.token_ids) == 450
    assert paused > 0
    assert await live_version(policy.socket) == "aaaaaa:2"


async def test_new_requests_after_an_update_are_sampled_by_the_new_weights_alone(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    await policy.weights.load(snapshot(tiny_model, tiny_model.full_b, "aaaaaa:2"))

    long_prompt = [0] + [3 + i % 20 for i in range(300)]
    await assert_serves(policy, tiny_model, tiny_model.full_b, prompt=long_prompt)
    # Again, now that its prefix is cached.
    await assert_serves(policy, tiny_model, tiny_model.full_b, prompt=long_prompt)


async def in_flight(policy: PolicyClient, n: int, tokens: int) -> asyncio.Task[list[Sample]]:
    """Wait until a request for `n` long samples has sampled this many tokens."""
    params = sampling_params(Sampling(max_tokens=450, ignore_eos=True), [1], CONTEXT)
    before = (await policy.counters()).tokens
    request = asyncio.create_task(policy.generate(PROMPT, n, params))
    while (await policy.counters()).tokens < before + tokens:
        assert not request.done()
    return request


async def test_abort_continues_what_was_sampled_under_the_new_weights(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    before = (await policy.counters()).tokens
    request = await in_flight(policy, n=4, tokens=40)

    await policy.weights.load(snapshot(tiny_model, tiny_model.full_b, "aaaaaa:2"), "abort")

    for sample in await request:
        assert [span.version for span in sample.spans] == ["aaaaaa:1", "aaaaaa:2"]
        tokens, fork = sample.token_ids.tolist(), sample.spans[0].end
        assert (len(tokens), sample.finish_reason) == (450, "length")
        # Unlike with `keep`, every token has exactly the log-probability of the weights that its
        # span names: nothing of the other version's keys and values is left.
        for weights, part in (
            (tiny_model.full_a, slice(fork)),
            (tiny_model.full_b, slice(fork, None)),
        ):
            expected = reference_logprobs(tiny_model, weights, PROMPT, tokens, 1.0)[part]
            assert np.abs(sample.logprobs[part] - expected).max() <= 1e-3
    # Nothing was sampled twice (a token that was under way at the abort is sampled again).
    assert (await policy.counters()).tokens - before <= 4 * 450 + 4


async def test_what_a_leaving_worker_has_sampled_is_continued_exactly(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    params = sampling_params(Sampling(max_tokens=450, ignore_eos=True), [1], CONTEXT)
    before, leaving = (await policy.counters()).tokens, asyncio.Event()
    request = asyncio.create_task(policy.generate(PROMPT, 4, params, leaving=leaving))
    while (await policy.counters()).tokens < before + 40:
        assert not request.done()
    leaving.set()
    with pytest.raises(Interrupted) as interrupted:
        await request
    assert interrupted.value.begun is not None
    origin = Origin("r", 0, secrets.token_hex(8), "w", 0, "aaaaaa", 0.0)
    begun = begun_group(decode(encode(partial_group(origin, interrupted.value.begun))))
    assert 40 <= begun.tokens < 4 * 450

    await policy.weights.load(snapshot(tiny_model, tiny_model.full_b, "aaaaaa:2"))
    whole = await policy.generate(PROMPT, 4, params, begun=begun.samples)

    for start, sample in zip(begun.samples, whole, strict=True):
        fork, tokens = len(start.token_ids), sample.token_ids.tolist()
        assert (len(tokens), sample.finish_reason) == (450, "length")
        assert tokens[:fork] == start.token_ids.tolist()
        assert sample.logprobs[:fork].tobytes() == start.logprobs.tobytes()
        assert [span.version for span in sample.spans] == ["aaaaaa:1", "aaaaaa:2"]
        expected = reference_logprobs(tiny_model, tiny_model.full_b, PROMPT, tokens, 1.0)[fork:]
        assert np.abs(sample.logprobs[fork:] - expected).max() <= 1e-3


async def test_wait_lets_what_is_in_flight_end_under_the_old_weights(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    request = await in_flight(policy, n=4, tokens=40)

    loading = asyncio.create_task(
        policy.weights.load(snapshot(tiny_model, tiny_model.full_b, "aaaaaa:2"), "wait")
    )
    await asyncio.sleep(0)
    later = asyncio.create_task(policy.generate(PROMPT, 1, sampling_params(SAMPLING, [1], CONTEXT)))

    for sample in await request:
        assert [span.version for span in sample.spans] == ["aaaaaa:1"]
        assert len(sample.token_ids) == 450
    (sample,) = await later
    assert [span.version for span in sample.spans] == ["aaaaaa:2"]
    await loading


async def test_samples_cut_at_their_deadline_keep_their_tokens_and_others_go_on(
    policy: PolicyClient, tiny_model: TinyModel
) -> None:
    cut = asyncio.Event()
    # Far more than vLLM samples while a busy machine keeps this process waiting.
    params = sampling_params(Sampling(max_tokens=1000, ignore_eos=True), [1], CONTEXT)
    straggler = asyncio.create_task(policy.generate(PROMPT, 4, params, cut))
    other = await in_flight(policy, n=2, tokens=60)

    cut.set()

    for sample in await straggler:
        assert sample.finish_reason == "deadline"
        tokens = sample.token_ids.tolist()
        assert 0 < len(tokens) < 1000
        expected = reference_logprobs(tiny_model, tiny_model.full_a, PROMPT, tokens, 1.0)
        assert np.abs(sample.logprobs - expected).max() <= 1e-3
    assert [len(sample.token_ids) for sample in await other] == [450, 450]


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
async def test_an_update_empties_the_prefix_cache_also_of_what_is_in_flight(
    policy: PolicyClient, tiny_model: TinyModel, mode: UpdateMode
) -> None:
    """As for a request that was on its way at the update: with the salt of before."""
    prompt = [0] + [3 + i % 23 for i in range(300)]

    async def with_salt_of_before() -> Sample:
        body = request_body(
            prompt,
            1,
            sampling_params(SAMPLING, [1], CONTEXT),
            "same",
            secrets.token_hex(8),
        )
        answer = await policy._connection.send("POST", GENERATE, content=body)
        return parse_answer(answer.content)[0]

    await with_salt_of_before()
    request = await in_flight(policy, n=2, tokens=20)
    await policy.weights.load(snapshot(tiny_model, tiny_model.full_b, "aaaaaa:2"), mode)

    sample = await with_salt_of_before()

    expected = reference_logprobs(
        tiny_model, tiny_model.full_b, prompt, sample.token_ids.tolist(), 0.8
    )
    assert np.abs(sample.logprobs - expected).max() <= 1e-3
    await request


def truncated(good: Path, path: Path) -> None:
    path.write_bytes(good.read_bytes()[:-1000])


def missing_tensor(good: Path, path: Path) -> None:
    tensors = load_file(good)
    tensors.pop("model.layers.2.mlp.up_proj.weight")
    save_file(tensors, path)


def wrong_shape(good: Path, path: Path) -> None:
    tensors = load_file(good)
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(64, 512)
    save_file(tensors, path)


def wrong_type(good: Path, path: Path) -> None:
    tensors = load_file(good)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
    save_file(tensors, path)


def not_safetensors(good: Path, path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 a pickle in a zip, as torch.save writes it")


def published(model: TinyModel, weights: Path, version: int) -> WeightManifest:
    """Return the learner's log-probabilities with `weights`."""
    longest = CONTEXT - 1
    found = [
        reference_logprobs(model, weights, tokens[:1], tokens[1:], 1.0)
        for tokens in sequences(VOCABULARY, longest)
    ]
    canary = Canary("float32", VOCABULARY, longest, packed(np.concatenate(found)))
    return WeightManifest("r", version, "aaaaaa", "full", [], model.tensors, "m", canary=canary)


async def test_every_way_of_serving_other_weights_is_found(
    policy: PolicyClient, tiny_model: TinyModel, tmp_path: Path
) -> None:
    check = CanaryCheck(policy, "auto", masks=False)
    first = published(tiny_model, tiny_model.full_a, 1)
    second = published(tiny_model, tiny_model.full_b, 2)
    assert await check.problem(first) == ""
    assert check.gap is not None
    assert check.gap < 1e-4

    # The load was skipped, or the file is an old version's.
    await policy.weights.load(snapshot(tiny_model, tiny_model.full_a, second.tag))
    assert (await check.problem(second)).endswith("they are those of version aaaaaa:1")

    tensors = load_file(tiny_model.full_b)
    one, other = (f"model.layers.{i}.self_attn.o_proj.weight" for i in (0, 1))
    tensors[one], tensors[other] = tensors[other], tensors[one]
    save_file(tensors, tmp_path / "swapped.safetensors")
    await policy.weights.load(snapshot(tiny_model, tmp_path / "swapped.safetensors", second.tag))
    assert "nats on average; up to 0.005 is usual" in await check.problem(second)

    await policy.weights.load(snapshot(tiny_model, tiny_model.full_b, second.tag))
    assert await check.problem(second) == ""

    # Without a version the plugin does not learn that weights have changed, and keeps the cache.
    info = {"path": str(tiny_model.full_a), "kind": "full", "tensors": tiny_model.tensors}
    await policy.weights._control("/pause?mode=keep&clear_cache=false")
    await policy.weights._control("/start_weight_update")
    await policy.weights._control("/update_weights", {"update_info": info})
    await policy.weights._control("/finish_weight_update")
    await policy.weights._control("/resume")
    third = published(tiny_model, tiny_model.full_a, 3)
    assert (await check.problem(third)).startswith("vLLM does not serve version")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (truncated, "cannot read"),
        (missing_tensor, "holds"),
        (wrong_shape, "model.layers.1.mlp.down_proj.weight is F32 [64, 512]"),
        (wrong_type, "model.norm.weight is I32 [128], the model's was F32 [128]"),
        (not_safetensors, "cannot read"),
    ],
)
async def test_a_broken_snapshot_leaves_the_old_weights_serving(
    policy: PolicyClient, tiny_model: TinyModel, tmp_path: Path, broken, says: str
) -> None:
    path = tmp_path / "broken.safetensors"
    broken(tiny_model.full_b, path)

    with pytest.raises(LoadRefused) as refused:
        await policy.weights.load(snapshot(tiny_model, path, "aaaaaa:9"))

    assert says in str(refused.value)
    assert await live_version(policy.socket) == "aaaaaa:1"
    assert not await is_paused(policy.socket)
    (sample,) = await assert_serves(policy, tiny_model, tiny_model.full_a, n=1)
    assert [span.version for span in sample.spans] == ["aaaaaa:1"]


async def test_an_update_after_a_refused_one_works(
    policy: PolicyClient, tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = tmp_path / "broken.safetensors"
    truncated(tiny_model.full_b, path)
    with pytest.raises(LoadRefused):
        await policy.weights.load(snapshot(tiny_model, path, "aaaaaa:2"))

    await policy.weights.load(snapshot(tiny_model, tiny_model.full_b, "aaaaaa:2"))

    assert await live_version(policy.socket) == "aaaaaa:2"
    await assert_serves(policy, tiny_model, tiny_model.full_b)


async def test_a_request_that_cannot_be_served_is_refused_in_words(policy: PolicyClient) -> None:
    params = sampling_params(Sampling(max_tokens=8), [1], 8)
    with pytest.raises(RequestRefused, match=r"vLLM refused a request: 400 .*1024"):
        await policy.generate([0] * (CONTEXT + 10), 1, params)


async def test_context_length_is_the_servers(policy: PolicyClient) -> None:
    assert await policy.context_length() == CONTEXT


@pytest.mark.parametrize(
    "path", ["/collective_rpc", "/v1/completions", "/sleep", "/inference/v1/generate"]
)
async def test_only_the_routes_that_headrace_uses_exist(policy: PolicyClient, path: str) -> None:
    reply = await policy._connection.send("POST", path, json={"method": "save_model"})
    assert reply.status == 404


async def test_a_server_that_cannot_start_says_why_with_the_end_of_its_log(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    server = VLLMServer(
        ServerConfig(
            tiny_model.folder,
            VLLM(max_model_len=4096, startup_seconds=120),
            "float32",
            installed_device(),
        ),
        tmp_path / "vllm.log",
    )

    with pytest.raises(VLLMFailed) as failed:
        await server.start()

    assert "vLLM ended with exit code 1" in str(failed.value)
    assert "max_model_len" in str(failed.value)
    assert not server.alive
