"""Runs the same work on many tensors on several cores: xxhash and numpy release the GIL while they
work on an array."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST = 8
"""Maximum threads; more threads would wait for memory."""
AHEAD = 2
"""Items that each thread may be ahead of the consumer: results must not pile up in memory."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order. `items` is read in the calling thread."""
    count = min(MOST, len(os.sched_getaffinity(0)))
    if count == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="tensors") as pool:
        begun: deque[Future[Result]] = deque()
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) > AHEAD * count:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
