"""Programs a second: the `code` verifier, sandbox and all, against bare subprocesses.

Both run the same short program and its three assertions; a bare one is a fresh interpreter with no
isolation and no limit but a timeout.
"""

import asyncio
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.reward_client import Address, Rate, ask

SIZE, CONNECTIONS = 64, 2
PROGRAM = """
def has_close_elements(numbers: list[float], threshold: float) -> bool:
    ordered = sorted(numbers)
    return any(b - a < threshold for a, b in zip(ordered, ordered[1:]))
"""
WRONG = PROGRAM.replace("<", ">=")
TESTS = [
    "assert has_close_elements([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True",
    "assert has_close_elements([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.05) == False",
    "assert has_close_elements([1.0, 2.0, 5.9, 4.0, 5.0], 0.95) == True",
]


def measure(address: Address, count: int, workers: int) -> dict[str, Any]:
    """`count` programs each way, half of them right. `bare` and `service`."""
    programs = [WRONG if number % 2 else PROGRAM for number in range(count)]
    items = [
        {"verifier": "code", "completion": f"```python\n{program}\n```", "answer": TESTS}
        for program in programs
    ]
    asyncio.run(ask(address, items[: count // 4], SIZE, CONNECTIONS, b'"status":"correct"'))
    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        passed = sum(pool.map(_bare, programs))
    bare = Rate(count, time.perf_counter() - began, passed)
    served = asyncio.run(ask(address, items, SIZE, CONNECTIONS, b'"status":"correct"'))
    return {"bare": bare.figures(), "service": served.figures()}


def _bare(program: str) -> bool:
    text = "\n".join([program, *TESTS])
    done = subprocess.run(
        [sys.executable, "-I", "-c", text], capture_output=True, timeout=60, check=False
    )
    return done.returncode == 0
