"""The reward service against its own library, bare: `python -m bench.reward`.

Short math answers, each reference with 8 answers, are verified three ways in one run: by the
library math-verify in a process pool (parsing both sides each time, as it is used, and without its
timeouts, which rest on a signal that C code ignores), and by the service through HTTP with as many
workers, one item and 64 a request. Once more with one item that never ends in flight at any time,
and with 1 % of such items, in requests of their own: what the others then lose is the figure. The
bare pool would hang.

Parts `code` and `model` compare the sandbox with bare subprocesses, and reward models with a bare
batched forward pass (`reward_code`, `reward_model`). The cores are shared by both ends.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import machine, reward_code, reward_model
from bench.reward_client import Address, Connection, Rate, ask, encoded, service

SAMPLES = 8
PARTS = ("math", "code", "model")
AIM, MODEL_AIM = 0.85, 0.9
"""Of the bare rate, at 64 items a request."""
POISON = "\\boxed{9^{9^{9}}}"
POISON_TIMEOUT = 1.0
CONNECTIONS = {1: 64, 64: 8}
"""Requests in flight, by items a request: enough to keep the workers busy."""

Pair = tuple[str, str]


def pairs(kind: str, count: int, seed: int = 0) -> list[Pair]:
    """`count` (completion, reference), half of them right. `numbers`: what GSM8K has, in the forms
    that models write. `expressions`: fractions, roots, polynomials, sets, for which the library is
    needed."""
    chosen = random.Random(seed)
    made: list[Pair] = []
    while len(made) < count:
        a, b = chosen.randrange(2, 500), chosen.randrange(2, 50)
        if kind == "numbers":
            reference, wrong = f"{a:,}", f"{a + b:,}"
        else:
            reference, wrong = chosen.choice(
                [
                    (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{a + 1}}}{{{b}}}"),
                    (f"{a}\\sqrt{{{b}}}", f"{a}\\sqrt{{{b + 1}}}"),
                    (f"x^2+{a}x+{b}", f"x^2+{a}x-{b}"),
                    (f"\\{{{a}, -{b}\\}}", f"\\{{{a}, {b}\\}}"),
                    (f"({a}, {b}]", f"[{a}, {b}]"),
                ]
            )
        for sample in range(SAMPLES):
            answer = wrong if sample % 2 else reference
            form = chosen.choice(["So it is $\\boxed{{{}}}$.", "The answer is ${}$."])
            made.append((form.format(answer), reference))
    return made[:count]


def bare(items: Sequence[Pair], workers: int) -> Rate:
    """The library in a process pool."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(_verify, items[: 16 * workers], 16)
        began = time.perf_counter()
        results = pool.map(_verify, items, 64)
        return Rate(len(items), time.perf_counter() - began, sum(results))


def _verify(pair: Pair) -> bool:
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    completion, reference = pair
    gold = parse(f"${reference}$", parsing_timeout=None)
    return bool(verify(gold, parse(completion, parsing_timeout=None), timeout_seconds=None))


def math_items(items: Sequence[Pair], **params: Any) -> list[dict[str, Any]]:
    """As the service is asked."""
    return [
        {"verifier": "math", "completion": completion, "answer": reference, "params": params}
        for completion, reference in items
    ]


async def through(
    address: Address,
    items: Sequence[Pair],
    size: int,
    poison: float = 0.0,
    always: bool = False,
) -> Rate:
    """The service, `size` items a request. What is poisonous is in no figure: a share of `poison`
    beside them, or one at any time (`always`)."""
    count = round(len(items) * poison)
    # Spread over the run: one each time that a share of the others has been answered.
    doses: list[asyncio.Task[None]] = []

    def answered(requests: int) -> None:
        while len(doses) < count * min(1.0, requests * size / len(items)):
            doses.append(asyncio.create_task(dose()))

    async def dose() -> None:
        (request,) = encoded(math_items([(POISON, "5")], timeout=POISON_TIMEOUT), 1)
        body = await Connection(*address).post(request)
        if b'"status":"timeout"' not in body:
            raise RuntimeError(f"poison was not caught: {body[:300]!r}")

    async def overdose() -> None:
        while True:
            await dose()

    one_always = asyncio.create_task(overdose()) if always else None
    connections, right = CONNECTIONS[size], b'"status":"correct"'
    rate = await ask(address, math_items(items), size, connections, right, answered)
    await asyncio.gather(*doses)
    if one_always is not None:
        one_always.cancel()
    return rate


def measure_math(address: Address, count: int, workers: int, poison: float) -> dict[str, Any]:
    """All ways on both kinds of items, alternating, one service for all."""
    results: dict[str, Any] = {}
    for kind in ("numbers", "expressions"):
        items = pairs(kind, count)
        asyncio.run(through(address, items[: count // 4], 64))
        rates = {"bare": bare(items, workers)}
        for size in (1, 64):
            rates[f"{size} a request"] = asyncio.run(through(address, items, size))
            rates[f"{size} a request, one poisonous"] = asyncio.run(
                through(address, items, size, always=True)
            )
            rates[f"{size} a request, {poison:.0%} poisonous"] = asyncio.run(
                through(address, items, size, poison)
            )
        results[kind] = {name: rate.figures() for name, rate in rates.items()}
    return results


def measure(parts: Sequence[str], count: int, workers: int, poison: float) -> dict[str, Any]:
    """The parts asked for, each with a service of its own. Of programs and conversations, which
    take longer, a 32nd and an eighth of `count`."""
    results: dict[str, Any] = {"machine": machine.describe(), "workers": workers}
    processes = ("--workers", str(workers))
    if "math" in parts:
        with service(*processes) as address:
            results |= measure_math(address, count, workers, poison)
    if "code" in parts:
        with service(*processes) as address:
            results["code"] = reward_code.measure(address, count // 32, workers)
    if "model" in parts:
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            model = reward_model.make(Path(folder))
            with service(*processes, f"--reward-models=bench={model}") as address:
                results["model"] = reward_model.measure(address, model, count // 8)
    return results


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument("--items", type=int, default=12_800, help="verifications of each way")
    parser.add_argument("--workers", type=int, default=machine.describe()["cores"])
    parser.add_argument("--poison", type=float, default=0.01, help="share that never ends")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    given = parser.parse_args()
    results = measure(given.only or PARTS, given.items, given.workers, given.poison)
    if given.json:
        print(json.dumps(results, indent=2))
        return 0
    print(f"{given.workers} workers; aims at 64 a request: {AIM} of bare, models {MODEL_AIM}")
    for kind in ("numbers", "expressions", "code", "model"):
        for name, rate in results.get(kind, {}).items():
            ratio = rate["per_second"] / results[kind]["bare"]["per_second"]
            print(
                f"{kind:12} {name:26} {rate['per_second']:9,.0f}/s  {ratio:6.2f} of bare  "
                f"p50 {1e3 * rate['p50']:7.1f} ms  p99 {1e3 * rate['p99']:7.1f} ms  "
                f"right {rate['right'] / rate['items']:.1%}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
