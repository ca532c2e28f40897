"""`python -m bench.push`: from the end of a step until its version is on every host, for 8B and 32B
models, as deltas and as full files.

- `codec`: real code on smaller bfloat16 weights. A share of them has changed.
- `spread`: the product's own download plans on simulated links, in virtual time, at full size.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.links import Links, fetched
from bench.runner import BenchFailed, BenchPart, BenchResults, Figures
from learner.publishing.delta_files import LONGEST, SHARE
from services.runtime import logs
from services.volume import weight_file
from services.volume.sources import GATEWAY
from services.weights import DeltaReader, DeltaWriter, changes, tensor_checksum

Bits = NDArray[np.uint16]
TENSOR = 8 << 20
"""Weights of each synthetic tensor."""
MODELS = {"8B": 8.03e9, "32B": 32.8e9}
"""Weights, of 2 bytes each."""
SHARES = (0.004, 0.01, 0.02)
"""Shares of the weights. A step of AdamW at a learning rate of 1e-6 changes as many in bfloat16."""
USUAL = SHARES[1]
HOSTS, WORKERS = 8, 56
LINK = 10e9 / 8
"""Bytes/s of each host's link, in each direction."""
BYTES_PER_CHANGE = "bytes per changed weight"


def weights(count: int, seed: int) -> dict[str, Bits]:
    """Random bfloat16 weights, by tensor."""
    random = np.random.default_rng(seed)
    size = min(count, TENSOR)
    return {
        f"layers.{n}.weight": (
            random.normal(0, 0.02, size).astype(np.float32).view(np.uint32) >> 16
        ).astype(np.uint16)
        for n in range(max(1, count // TENSOR))
    }


def step(before: Mapping[str, Bits], share: float, seed: int) -> dict[str, Bits]:
    """Change a random share of the weights to the next bfloat16 value, as a small step does."""
    random = np.random.default_rng(seed)
    return {
        name: (bits ^ (random.random(bits.size, np.float32) < share)).astype(np.uint16)
        for name, bits in before.items()
    }


def codec(count: int, share: float, folder: Path) -> dict[str, float]:
    """CPU seconds for each GB of weights, and bytes of the delta for each changed weight. Raise
    BenchFailed if the delta does not lead to the new weights."""
    old = weights(count, 0)
    new = step(old, share, 1)
    size = sum(bits.nbytes for bits in new.values())
    path = folder / "delta"
    seconds: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = call()
        seconds[f"{name}, CPU s/GB"] = (time.thread_time() - began) / size * 1e9
        return result

    changed = timed("compare", lambda: {name: changes(old[name], new[name]) for name in new})
    sums = timed("checksums", lambda: {name: tensor_checksum(bits) for name, bits in new.items()})

    def encode() -> None:
        delta = DeltaWriter("aa:0", "aa:1")
        for name, bits in new.items():
            delta.add(name, bits.shape, sums[name], *changed[name])
        delta.write(path)

    def read() -> None:
        with DeltaReader(path) as reader:
            for patch in reader.patches():
                old[patch.name][patch.positions] = patch.values

    timed("encode and write", encode)
    timed("checksum of the file", lambda: weight_file(path, "delta"))
    timed("read and apply", read)
    timed("checksums of the result", lambda: [tensor_checksum(bits) for bits in old.values()])
    if any(not np.array_equal(old[name], new[name]) for name in new):
        raise BenchFailed("the delta does not lead to the new weights")
    return {BYTES_PER_CHANGE: path.stat().st_size / (share * size / 2), **seconds}


def spread(size: float, hosts: int, alone: bool = False) -> Figures:
    """One file of `size` bytes for all hosts at once. `alone`: hosts download from the gateway
    only."""
    links = Links(LINK, LINK)
    names = [f"host-{n}" for n in range(hosts)]
    if alone:
        for name in names:
            links.send(GATEWAY, name, int(size), lambda: None)
        links.run()
        return sent(links, names, links.now)
    return sent(links, names, max(fetched(links, int(size), names, []).values()))


def late(size: float, delta: float) -> Figures:
    """One host that comes later, to an anchor and as many deltas as it may have."""
    links = Links(LINK, LINK)
    having = [f"host-{n}" for n in range(HOSTS)]
    files = [int(size), *[int(delta)] * min(LONGEST, int(SHARE * size / delta))]
    seconds = sum(
        fetched(links, count, ["late"], having, f"file-{number}")["late"]
        for number, count in enumerate(files)
    )
    return sent(links, having, seconds)


def sent(links: Links, names: list[str], seconds: float) -> Figures:
    """The time of the last host, and the bytes that gateway and hosts sent."""
    return {
        "seconds": seconds,
        "gateway sends, GB": links.sent[GATEWAY] / 1e9,
        "busiest host sends, GB": max(links.sent[name] for name in names) / 1e9,
    }


def spreads(model: str, bytes_per_change: Mapping[float, float]) -> BenchPart:
    """All ways to bring a version of this model to the hosts."""
    count = MODELS[model]
    sides = {
        "full, 1 host": partial(spread, 2 * count, 1),
        "full, 8 hosts, each from the gateway": partial(spread, 2 * count, HOSTS, alone=True),
        "full, 8 hosts, from each other": partial(spread, 2 * count, HOSTS),
    }
    for share, ratio in bytes_per_change.items():
        delta = share * count * ratio
        for hosts in (1, HOSTS, WORKERS):
            sides[f"delta of {share:.1%}, {hosts} host{'s' * (hosts > 1)}"] = partial(
                spread, delta, hosts
            )
        if share == USUAL:
            name = f"delta of {share:.1%}, 56 hosts, each from the gateway"
            sides[name] = partial(spread, delta, WORKERS, alone=True)
            sides["late host: anchor and all its deltas"] = partial(late, 2 * count, delta)
    return BenchPart(f"spread, {model}", sides, sides_as_rows=True)


def run(count: int) -> BenchResults:
    results = BenchResults("push", {"weights": count})
    with results.noting(), tempfile.TemporaryDirectory(prefix="headrace-") as name:
        folder = Path(name)
        sides = {f"{share:.1%} changed": partial(codec, count, share, folder) for share in SHARES}
        results.measure(BenchPart("codec", sides))
        sizes = {
            share: bytes_per_change
            for share, side in zip(SHARES, sides, strict=True)
            if (bytes_per_change := results.value("codec", side, BYTES_PER_CHANGE))
        }
        for model in MODELS:
            results.measure(spreads(model, sizes))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.push", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller weights")
    quick = parser.parse_args().quick
    logs.configure("bench", "warning", "auto")
    return run((2 if quick else 16) * TENSOR).report()


if __name__ == "__main__":
    sys.exit(main())
