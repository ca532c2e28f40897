"""Decoding an answer's tokens, and the part of the answer that its prompt already has."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from rollout.episodes import Completion
from rollout.text.answer_text import prefill, text_of
from rollout.vllm.model_files import TokenizerLike
from rollout.work.group import SampleRequest, sample_and_score
from rollout.work.run_context import RunContext
from services.contracts.config import parse_config
from services.contracts.rows.dataset import Row
from services.contracts.scores import ScoreItem, ScoreResult, ScoreStatus


def tokenizer_of(special: list[str], plain: list[str]) -> Any:
    """A tokenizer of bytes with these added tokens."""
    alphabet = {letter: n for n, letter in enumerate(sorted(ByteLevel.alphabet()))}
    made = Tokenizer(BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = Decoder()
    made.add_special_tokens([AddedToken(text, special=True) for text in special])
    made.add_tokens([AddedToken(text, special=False) for text in plain])
    return PreTrainedTokenizerFast(tokenizer_object=made)


MISTRAL = tokenizer_of(["[THINK]", "[/THINK]", "</s>"], [])
HARMONY = tokenizer_of(["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>"], [])
QWEN = tokenizer_of(["<|im_end|>"], ["<think>", "</think>"])


def ids(tokenizer: TokenizerLike, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize(
    ("tokenizer", "written", "read"),
    [
        (MISTRAL, "[THINK]né 4[/THINK]é 5</s>", "[THINK]né 4[/THINK]é 5"),
        (MISTRAL, "[THINK][THINK]", "[THINK][THINK]"),
        (QWEN, "<think>4</think>5<|im_end|>", "<think>4</think>5"),
        (
            HARMONY,
            "<|channel|>analysis<|message|>4<|end|><|start|>assistant<|channel|>final<|message|>5"
            "<|return|>",
            "<|channel|>analysis<|message|>4assistant<|channel|>final<|message|>5",
        ),
        (MISTRAL, "", ""),
    ],
    ids=["mistral", "twice", "qwen", "gpt-oss", "empty"],
)
def test_the_tags_of_thoughts_stay_even_if_they_are_special_tokens(
    tokenizer: TokenizerLike, written: str, read: str
) -> None:
    assert text_of(tokenizer, ids(tokenizer, written)) == read


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "begun"),
    [
        (QWEN, "1+1<|im_end|>\n<think>\n", "<think>\n"),
        (QWEN, "x" * 500 + "<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        (MISTRAL, "1+1[THINK]", "[THINK]"),
        (MISTRAL, "1+1<think>\n", "<think>\n"),
        (QWEN, "Use <think> and </think>: 1+1", ""),
        (QWEN, "", ""),
    ],
)
def test_the_beginning_of_an_answer_is_read_from_the_prompts_tokens(
    tokenizer: TokenizerLike, prompt: str, begun: str
) -> None:
    assert prefill(tokenizer, ids(tokenizer, prompt)) == begun


def test_a_prompt_opens_no_thought_if_a_parser_has_removed_it() -> None:
    prompt = ids(QWEN, "<think>\n")
    assert prefill(QWEN, prompt, {"content": "5", "reasoning": "hm"}) == ""
    assert prefill(QWEN, prompt, {"content": "hm"}) == "<think>\n"


class Spoken:
    """An episode with scripted completions. The last one has a text of its own."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self.tokenizer = tokenizer

    async def run(self, *of: object) -> list[Completion]:
        def said(**more: Any) -> Completion:
            tokens = np.array(ids(self.tokenizer, "5, but"), np.int32)
            none = np.zeros(len(tokens))
            return Completion(tokens, none > 0, none.astype(np.float32), [], "length", **more)

        return [said(), said(text="6"), said(text="7", prefill="[THINK]")]


async def test_the_reward_service_gets_the_thought_that_a_prompt_opened() -> None:
    asked: list[ScoreItem] = []

    async def score(items: list[ScoreItem]) -> list[ScoreResult]:
        asked.extend(items)
        return [ScoreResult(id=one.id, status=ScoreStatus.WRONG, reward=0) for one in items]

    config: Any = parse_config(
        {
            "model": {"path": "m"},
            "data": {"dataset": "d", "template": "{prompt}\n<think>", "chat_template": "none"},
            "rewards": [{"verifier": "math"}],
        }
    )
    context: Any = SimpleNamespace(
        config=config,
        tokenizer=QWEN,
        episode=Spoken(QWEN),
        context=1000,
        eos=[],
        policy=SimpleNamespace(weights=None),
        rewards=SimpleNamespace(score=score),
    )
    row = Row(prompt="2+3=", answer="5")
    request = SampleRequest(0, row, config.data, config.components, config.sampling, samples=3)
    await sample_and_score(cast(RunContext, context), request, lambda: None)

    assert [(one.completion, one.prefill) for one in asked] == [
        ("5, but", "<think>"),
        ("6", ""),
        ("7", "[THINK]"),
    ]
