"""The libraries that the reward service uses, bare: math-verify in a process pool, programs in
fresh interpreters, a reward model in batches."""

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from bench.reward.items import Item


def rate(
    items: int, seconds: float, right: int, times: Sequence[float] = (0.0,)
) -> dict[str, float]:
    """The figures of one way. `right`: as expected; `times`: seconds of each request."""
    return {
        "items": items,
        "right": right,
        "per_second": items / seconds,
        "p50": median(times),
        "p99": sorted(times)[int(0.99 * len(times))],
    }


def bare_math(items: Sequence[Item], workers: int) -> dict[str, float]:
    """The library in a process pool."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(_verify, items[: 16 * workers], 16)
        began = time.perf_counter()
        results = pool.map(_verify, items, 64)
        return rate(len(items), time.perf_counter() - began, sum(results))


def _verify(item: Item) -> bool:
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    gold = parse(f"${item['answer']}$", parsing_timeout=None)
    found = parse(item["completion"], parsing_timeout=None)
    return bool(verify(gold, found, timeout_seconds=None))


def bare_code(items: Sequence[Item], workers: int) -> dict[str, float]:
    """Fresh interpreters with no isolation and no limit but a timeout."""

    def passes(item: Item) -> bool:
        text = "\n".join([item["completion"], *item["answer"]])
        command = [sys.executable, "-I", "-c", text]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        passed = sum(pool.map(passes, items))
    return rate(len(items), time.perf_counter() - began, passed)


def bare_model(folder: Path, items: Sequence[Item]) -> dict[str, float]:
    """Template, tokens and forward passes of up to 4,096 tokens, rows sorted by length."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    chats = [
        [*item["prompt"], {"role": "assistant", "content": item["completion"]}] for item in items
    ]
    scored, began = 0, time.perf_counter()
    texts = tokenizer.apply_chat_template(chats, tokenize=False)
    rows = sorted(tokenizer(texts, add_special_tokens=False)["input_ids"], key=len)
    while rows:
        # The longest of so many rows decides.
        size = next((n for n in range(len(rows), 0, -1) if n * len(rows[n - 1]) <= 4096), 1)
        padded = tokenizer.pad({"input_ids": rows[:size]}, return_tensors="pt")
        rows = rows[size:]
        with torch.inference_mode():
            scored += len(model(**padded).logits.tolist())
    return rate(len(items), time.perf_counter() - began, scored)
