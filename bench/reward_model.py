"""Conversations a second: the `model` verifier against the same model bare, in batches.

The bare side loads the model with transformers, has all conversations at once, sorts them by length
and fills forward passes of as many tokens as suit a CPU: the best that batching can do. The service
gets them 64 a request.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.reward_client import Address, Rate, ask

SIZE, CONNECTIONS = 64, 8
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"


def make(folder: Path) -> Path:
    """A classifier of 3 M parameters with random weights, and a tokenizer of bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"</s>": 0, "<pad>": 1, **{one: 2 + number for number, one in enumerate(alphabet)}}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=1024,
        num_labels=1,
        pad_token_id=1,
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


def conversations(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """`count` (question, answer), 40 to 400 characters together."""
    chosen = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz     "
    return [
        (
            "".join(chosen.choices(letters, k=chosen.randrange(20, 100))),
            "".join(chosen.choices(letters, k=chosen.randrange(20, 300))),
        )
        for _ in range(count)
    ]


def measure(address: Address, folder: Path, count: int) -> dict[str, Any]:
    """`count` conversations each way. `bare` and `service`."""
    items = [
        {
            "verifier": "model",
            "prompt": [{"role": "user", "content": question}],
            "completion": answer,
        }
        for question, answer in conversations(count)
    ]
    right = b'"status":"scored"'
    asyncio.run(ask(address, items[: count // 4], SIZE, CONNECTIONS, right))
    # A process of its own, as the service's model has one, with the same threads.
    done = subprocess.run(
        [sys.executable, "-m", "bench.reward_model", str(folder), str(count)],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
    )
    bare = Rate(count, float(json.loads(done.stdout)), count)
    served = asyncio.run(ask(address, items, SIZE, CONNECTIONS, right))
    return {"bare": bare.figures(), "service": served.figures()}


def bare(folder: Path, count: int) -> float:
    """Seconds of the library alone for `count` conversations: template, tokens, forward passes."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from reward.models.scorer import BATCH_TOKENS_CPU

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.use_cache = False

    def score(asked: list[tuple[str, str]]) -> int:
        chats = [
            [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            for question, answer in asked
        ]
        texts = tokenizer.apply_chat_template(chats, tokenize=False)
        rows = sorted(tokenizer(texts, add_special_tokens=False)["input_ids"], key=len)
        scored = 0
        while rows:
            # Rows of rising length: the longest of so many decides.
            size = next(
                (n for n in range(len(rows), 0, -1) if n * len(rows[n - 1]) <= BATCH_TOKENS_CPU), 1
            )
            batch, rows = rows[:size], rows[size:]
            padded = tokenizer.pad({"input_ids": batch}, return_tensors="pt")
            scored += len(model(**padded).logits.tolist())
        return scored

    with torch.inference_mode():
        score(conversations(count // 4, seed=1))
        asked = conversations(count)
        began = time.perf_counter()
        assert score(asked) == count
        return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(bare(Path(sys.argv[1]), int(sys.argv[2]))))
