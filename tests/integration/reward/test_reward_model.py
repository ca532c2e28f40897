"""Reward models in processes of their own: tiny random ones, scored as a bare forward pass does."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from reward.models.scorer import Classifier, LoadError, load, scores_of
from reward.models.wire import ModelOptions
from services.runtime.api_key import authorization
from tests.integration.reward.conftest import KEY, Service, alive, children, until
from tests.integration.reward.test_pool import math, score
from tests.integration.reward.tiny_models import (
    save_classifier,
    save_own_code,
    save_policy,
    save_tokenizer,
)

ANSWERS = ["4", "It is four, I think.", "", "x" * 90, "It is </s> four", "vier ☃"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"), labels=2)


def conversation(answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]


def bare(folder: Path, text: str) -> list[float]:
    """The raw scores of one text, in a forward pass without padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    model.config.pad_token_id = None
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        scores: list[float] = model(ids).logits[0].tolist()
    return scores


def test_a_batch_scores_like_one_by_one_though_padding_has_a_meaning(folder: Path) -> None:
    scorer = load(ModelOptions(str(folder), device="cpu"))

    scores = scorer.score(scorer.encode([conversation(answer) for answer in ANSWERS]))

    alone = [bare(folder, f"<u>2 + 2?</s><a>{answer}</s>") for answer in ANSWERS]
    assert len({round(score[0], 3) for score in alone}) == len(ANSWERS)
    for found, expected in zip(scores, alone, strict=True):
        assert found == pytest.approx(expected, abs=1e-4)


def test_a_template_that_reads_lists_of_parts_gets_them(tmp_path: Path) -> None:
    in_parts = (
        "{% for m in messages %}<{{ m.role[0] }}>{% for part in m.content %}{{ part.text }}"
        "{% endfor %}{% endfor %}"
    )
    folder = save_classifier(tmp_path, template=in_parts)
    scorer = load(ModelOptions(str(folder), device="cpu"))

    (scores,) = scorer.score(scorer.encode([conversation("4")]))

    assert scores == pytest.approx(bare(folder, "<u>2 + 2?<a>4"), abs=1e-4)


def test_without_a_chat_template_a_conversation_is_a_pair_of_texts(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, template=None)
    scorer = load(ModelOptions(str(folder), device="cpu"))

    (scores,) = scorer.score(scorer.encode([conversation("4")]))

    assert scores == pytest.approx(bare(folder, "2 + 2?4"), abs=1e-4)


def test_a_long_conversation_loses_its_beginning(folder: Path) -> None:
    scorer = load(ModelOptions(str(folder), device="cpu", max_tokens=20))

    long, short = scorer.encode([conversation("x" * 50 + "end"), conversation("4")])

    assert (len(long.ids), long.truncated) == (20, True)
    assert not short.truncated
    assert scorer.score([long]) == [pytest.approx(bare(folder, "x" * 16 + "end</s>"), abs=1e-4)]


def test_a_batch_that_does_not_fit_into_memory_is_halved(folder: Path) -> None:
    class Small(Classifier):
        """Takes two at a time, and never a long one."""

        def _forward(self, batch: Any) -> list[list[float]]:
            if len(batch) > 2 or any(len(one.ids) > 60 for one in batch):
                raise torch.OutOfMemoryError
            return super()._forward(batch)

    scorer = Small(ModelOptions(str(folder), device="cpu"))

    scores = scorer.score(scorer.encode([conversation(answer) for answer in ANSWERS]))

    assert [isinstance(one, list) for one in scores] == [True, True, True, False, True, True]
    assert "do not fit" in str(scores[3])


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"is no reward model: .* weights for score\.weight"):
        load(ModelOptions(str(save_policy(tmp_path)), device="cpu"))


def test_a_models_own_code_runs_only_if_it_is_trusted(tmp_path: Path) -> None:
    folder = str(save_own_code(tmp_path))

    with pytest.raises((LoadError, ValueError), match=r"(?i)code"):
        load(ModelOptions(folder, device="cpu"))
    scorer = load(ModelOptions(folder, device="cpu", trust_remote_code=True))

    assert scorer.score(scorer.encode([conversation("four"), conversation("")])) == [[4.0], [0.0]]


def test_a_conversation_that_breaks_the_model_fails_alone(tmp_path: Path) -> None:
    folder = str(save_own_code(tmp_path))
    scorer = load(ModelOptions(folder, device="cpu", trust_remote_code=True))
    texts = ["four", "poison", "five!"]

    scores = scores_of(scorer, scorer.encode([conversation(text) for text in texts]))

    assert scores == [[4.0], "the model breaks on it: IndexError: no such token", [5.0]]


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Service]:
    """A service with a reward model of two labels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GOMP_SPINCOUNT", raising=False)
        service = Service(
            tmp_path_factory.mktemp("modelled"),
            f"--reward-models=tiny={folder}",
            *("--reward-model-device", "cpu", "--reward-model-max-tokens", "120"),
            *("--reward-gpus", "3"),
        )
    yield service
    service.end()


@pytest.fixture
async def client(modelled: Service) -> AsyncIterator[httpx.AsyncClient]:
    await modelled.ready()
    async with modelled.client() as client:
        yield client


def item(number: int, answer: str, **params: Any) -> dict[str, Any]:
    return {
        "id": str(number),
        "verifier": "model",
        "prompt": "2 + 2?",
        "completion": answer,
        "params": params,
    }


def model_process(service: Service) -> int:
    """The process id of the service's reward model."""
    (pid,) = [
        pid
        for pid in children(service.process.pid)
        if b"reward.models" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


async def test_scores_come_in_order_mixed_with_other_verifiers(
    client: httpx.AsyncClient, folder: Path
) -> None:
    items = [item(number, answer, label=1) for number, answer in enumerate(ANSWERS)]
    items.insert(2, math(99, "5"))

    results = await score(client, *items)

    assert results.pop(2)["status"] == "correct"
    for result, answer in zip(results, ANSWERS, strict=True):
        expected = bare(folder, f"<u>2 + 2?</s><a>{answer}</s>")[1]
        assert (result["status"], result["reward"]) == ("scored", pytest.approx(expected, abs=1e-4))


async def test_bias_scale_clip_and_the_share_of_the_answer(
    client: httpx.AsyncClient, folder: Path
) -> None:
    completion = "<think>hm</think><answer>4</answer>"
    whole, own = (bare(folder, f"<u>2 + 2?</s><a>{text}</s>")[0] for text in (completion, "4"))

    (result,) = await score(
        client, item(0, completion, bias=0.5, scale=2, clip=0.75, answer_weight=0.6)
    )

    parts = [max(-0.75, min(0.75, (raw - 0.5) * 2)) for raw in (whole, own)]
    assert result["reward"] == pytest.approx(0.4 * parts[0] + 0.6 * parts[1], abs=1e-4)
    assert list(result["components"]) == ["whole", "answer"]


async def test_a_models_process_sees_its_own_gpu_alone_and_its_threads_soon_sleep(
    client: httpx.AsyncClient, modelled: Service
) -> None:
    environment = Path(f"/proc/{model_process(modelled)}/environ").read_bytes().split(b"\0")

    assert b"CUDA_VISIBLE_DEVICES=3" in environment
    assert b"GOMP_SPINCOUNT=1000" in environment


async def test_the_detail_says_that_a_conversation_was_truncated(client: httpx.AsyncClient) -> None:
    (result,) = await score(client, item(0, "x" * 500))

    assert result["detail"] == "the beginning of the conversation was cut off"


async def test_a_prompt_that_the_template_refuses_fails_alone(client: httpx.AsyncClient) -> None:
    broken = {**item(0, "4"), "prompt": [{"no": "role"}]}

    bad, good = await score(client, broken, item(1, "4"))

    assert (bad["status"], bad["reward"]) == ("error", None)
    assert good["status"] == "scored"


async def test_a_process_that_dies_is_replaced_and_costs_nothing(
    client: httpx.AsyncClient, modelled: Service
) -> None:
    first = model_process(modelled)
    os.kill(first, signal.SIGSTOP)
    waiting = asyncio.create_task(score(client, item(0, "4")))
    await until(lambda: pending(modelled) == 1, "the item has been taken")

    os.kill(first, signal.SIGKILL)
    (result,) = await waiting

    assert result["status"] == "scored"
    assert model_process(modelled) != first


def pending(service: Service) -> float:
    name = "headrace_reward_pending_items "
    lines = httpx.get(f"{service.url}/metrics", headers=authorization(KEY)).text.splitlines()
    (value,) = [line.removeprefix(name) for line in lines if line.startswith(name)]
    return float(value)


async def test_a_model_that_cannot_be_loaded_stops_the_start(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    save_tokenizer(tmp_path / "empty")

    service = start(f"--reward-models=tiny={tmp_path / 'empty'}")
    await until(lambda: service.process.poll() is not None, "it ends")

    assert service.process.returncode == 1
    assert "reward model 'tiny'" in service.log.read_text()


async def test_a_service_that_is_killed_leaves_no_model_behind(
    start: Callable[..., Service], folder: Path
) -> None:
    service = await start(f"--reward-models=tiny={folder}", "--reward-model-device", "cpu").ready()
    pid = model_process(service)
    os.kill(pid, signal.SIGSTOP)

    service.process.kill()
    service.process.wait()

    await until(lambda: not alive(pid), "the model's process is gone")
