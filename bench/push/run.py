"""`python -m bench.push`: from the end of a step until its version is on every host, for 8B and 32B
models, as deltas and as full files.

Four parts, and what each of them is:

- `codec`: real code on one core, on bfloat16 weights of a smaller size of which AdamW-like shares
  changed; seconds per GB of weights.
- `cores`: what learner and worker do with a delta, on one core and on all in turns; wall time, and
  how much of the CPU time one thread has to spend however many cores there are.
- `spread`: the product's own plans on simulated links, in virtual time, at full size.
- `loopback`: real code at a smaller size: the gateway's and the workers' HTTP servers, downloads of
  7 workers on each of 8 hosts, heartbeats in a real Redis. Bytes are counted, times are not: all
  hosts share this machine.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from bench.push.loopback import HOSTS, WORKERS, loopback
from bench.results import begun, keep, table
from bench.simulated.links import Links, fetched
from bench.simulated.versions import TENSOR, step, weights, write_delta, write_full
from learner.persist.chain import LONGEST, SHARE
from learner.persist.mirror import Mirror
from rollout.vllm.staging import patched, whole
from services.runtime import logs
from services.volume import weight_file
from services.volume.sources import GATEWAY
from services.weights import DeltaReader, DeltaWriter, changes, tensor_checksum

MODELS = {"8B": 8.03e9, "32B": 32.8e9}
"""Weights, of 2 bytes each."""
SHARES = (0.004, 0.01, 0.02)
"""Of the weights that one step of AdamW at a learning rate of 1e-6 changes in bfloat16."""
ROUNDS = 8
LOOPBACK_SHARE = 0.06
"""Of the small model, so that its deltas have several parts, as those of large models do."""
LINK = 10e9 / 8
"""Bytes/s of each host's link, in each direction."""
GATEWAY_BEFORE = 0.35e9
"""Bytes/s that the gateway sent before it used sendfile (measured on another machine)."""


# --- codec ----------------------------------------------------------------------------------------


def codec(count: int, share: float, folder: Path) -> dict[str, float]:
    """CPU seconds for each GB of weights, and bytes of the delta for each changed weight."""
    old = weights(count, 0)
    new = step(old, share, 1)
    size = sum(bits.nbytes for bits in new.values())
    path = folder / "delta"
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> None:
        began = time.thread_time()
        found[name] = call()
        seconds[name] = (time.thread_time() - began) / size * 1e9

    timed("compare", lambda: {name: changes(old[name], bits) for name, bits in new.items()})
    timed("checksums", lambda: {name: tensor_checksum(bits) for name, bits in new.items()})
    delta = DeltaWriter("aa:0", "aa:1")

    def encode() -> None:
        for name, bits in new.items():
            delta.add(name, bits.shape, found["checksums"][name], *found["compare"][name])
        delta.write(path)

    timed("encode_and_write", encode)
    timed("checksum_of_file", lambda: weight_file(path, "delta"))

    def read() -> None:
        with DeltaReader(path) as reader:
            for patch in reader.patches():
                bits = old[patch.name]
                bits[patch.positions] = patch.values

    timed("read_and_apply", read)
    timed("checksums_of_result", lambda: {name: tensor_checksum(b) for name, b in old.items()})
    if any(not np.array_equal(old[name], new[name]) for name in new):
        raise RuntimeError("the delta does not lead to the new weights")
    seconds["bytes_per_change"] = path.stat().st_size / (share * size / 2)
    return seconds


# --- cores ----------------------------------------------------------------------------------------


def cores(count: int, share: float, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds for each GB of weights, the least of `rounds`: the learner takes over what a step has
    changed, with checksums, and encodes it; the worker decodes a delta, or makes the whole version
    of a file and a delta for a vLLM that takes no single values."""
    old = weights(count, 0)
    new = step(old, share, 1)
    size = sum(bits.nbytes for bits in new.values())
    whole_file, delta_file = folder / "whole", folder / "changes"
    write_full(whole_file, old)
    write_delta(delta_file, old, new, 1)
    found = [(name, *changes(old[name], bits)) for name, bits in new.items()]
    mirror = Mirror(load_file(whole_file))

    def learner() -> None:
        mirror.change(iter(found), "aa:0", "aa:1")

    def worker_values() -> None:
        with DeltaReader(delta_file) as delta:
            patched([delta])

    def worker_whole() -> None:
        with DeltaReader(delta_file) as delta:
            whole(whole_file, [delta])

    allowed = os.sched_getaffinity(0)
    seconds: dict[str, list[float]] = defaultdict(list)
    try:
        for _ in range(rounds):
            for label, on in (("one", {min(allowed)}), ("all", allowed)):
                # Of this thread, and of those that it starts.
                os.sched_setaffinity(0, on)
                for call in (learner, worker_values, worker_whole):
                    name = call.__name__
                    began = time.monotonic(), time.process_time(), time.thread_time()
                    call()
                    seconds[f"{name}_{label}"].append(time.monotonic() - began[0])
                    seconds[f"{name}_{label}_cpu"].append(time.process_time() - began[1])
                    seconds[f"{name}_{label}_serial"].append(time.thread_time() - began[2])
    finally:
        os.sched_setaffinity(0, allowed)
    least = {name: min(rounds_) / size * 1e9 for name, rounds_ in seconds.items()}
    return {"cores": len(allowed), **least}


# --- spread ---------------------------------------------------------------------------------------


def spread(size: float, hosts: int, gateway: float = LINK, alone: bool = False) -> dict[str, float]:
    """One file of `size` bytes, wanted by so many hosts at once. `alone`: each from the gateway,
    and none from another."""
    links = Links(LINK, gateway)
    names = [f"host-{n}" for n in range(hosts)]
    if alone:
        for name in names:
            links.send(GATEWAY, name, int(size), lambda: None)
        links.run()
        seconds = links.now
    else:
        seconds = max(fetched(links, int(size), names, []).values())
    return {
        "seconds": seconds,
        "gateway_gb": links.sent[GATEWAY] / 1e9,
        "busiest_host_sends_gb": max(links.sent[name] for name in names) / 1e9,
        "busiest_host_gets_gb": max(links.got[name] for name in names) / 1e9,
    }


def late(size: float, delta: float, hosts: int) -> dict[str, float]:
    """One host that comes later, to an anchor and the longest chain of such deltas."""
    links = Links(LINK, LINK)
    having = [f"host-{n}" for n in range(hosts)]
    fetched(links, int(size), ["late"], having)
    for number in range(min(LONGEST, int(SHARE * size / delta))):
        fetched(links, int(delta), ["late"], having, f"delta-{number}")
    return {"seconds": links.now, "gateway_gb": links.sent[GATEWAY] / 1e9}


def spreads(bytes_per_change: Mapping[float, float]) -> dict[str, Any]:
    """All models and shares."""
    results: dict[str, Any] = {}
    for model, count in MODELS.items():
        full = 2 * count
        found: dict[str, Any] = {
            "full, one host": spread(full, 1, alone=True),
            "full, 8 hosts, each from the gateway, at 0.35 GB/s": spread(
                full, HOSTS, GATEWAY_BEFORE, alone=True
            ),
            "full, 8 hosts, each from the gateway": spread(full, HOSTS, alone=True),
            "full, 8 hosts": spread(full, HOSTS),
        }
        for share in SHARES:
            delta = share * count * bytes_per_change[share]
            name = f"delta of {share:.1%}"
            found[f"{name}, one host"] = spread(delta, 1)
            found[f"{name}, 8 hosts"] = spread(delta, HOSTS)
            found[f"{name}, 56 hosts"] = spread(delta, WORKERS)
        usual = SHARES[1] * count * bytes_per_change[SHARES[1]]
        found["late, anchor and longest chain of 1 %"] = late(full, usual, HOSTS)
        results[model] = found
    return results


# --- all of it ------------------------------------------------------------------------------------


def run(count: int, small: int, versions: int) -> dict[str, Any]:
    """All parts. `count` weights for the codec, `small` for the downloads."""
    results = begun("push")
    with tempfile.TemporaryDirectory(prefix="headrace-") as name:
        folder = Path(name)
        results["codec"] = {str(share): codec(count, share, folder) for share in SHARES}
        results["cores"] = cores(count, SHARES[1], ROUNDS, folder)
        sizes = {share: results["codec"][str(share)]["bytes_per_change"] for share in SHARES}
        results["spread"] = spreads(sizes)
        results["loopback"] = asyncio.run(loopback(small, versions, LOOPBACK_SHARE, folder))
    return results


def text(results: Mapping[str, Any]) -> str:
    """A table for each part."""
    shares = results["codec"]
    names = [name for name in next(iter(shares.values())) if name != "bytes_per_change"]
    rows = [["codec, changed", *(f"{float(share):.1%}" for share in shares)]]
    rows.append(["bytes a change", *(f"{one['bytes_per_change']:.2f}" for one in shares.values())])
    for name in names:
        label = f"{name.replace('_', ' ')}, CPU s/GB of weights"
        rows.append([label, *(f"{one[name]:.3f}" for one in shares.values())])
    tables = [table(rows)]
    found = results["cores"]
    labels = ("one core", f"{found['cores']} cores", "CPU", "of it in one thread")
    rows = [["a delta, s/GB of weights", *labels]]
    for name in ("learner", "worker_values", "worker_whole"):
        keys = (f"{name}_one", f"{name}_all", f"{name}_all_cpu", f"{name}_all_serial")
        rows.append([name.replace("_", ", "), *(f"{found[key]:.3f}" for key in keys)])
    tables.append(table(rows))
    for model, found in results["spread"].items():
        rows = [[f"spread, {model}", "seconds", "gateway sends", "busiest host sends", "gets"]]
        for name, one in found.items():
            sizes = ("gateway_gb", "busiest_host_sends_gb", "busiest_host_gets_gb")
            cells = (f"{one[key]:.2f} GB" if key in one else "" for key in sizes)
            rows.append([name, f"{one['seconds']:.2f}", *cells])
        tables.append(table(rows))
    found = results["loopback"]
    rows = [["loopback, 56 workers on 8 hosts", "full", "deltas", "late host"]]
    kinds = ("full", "delta", "late")
    for key, label in (
        ("bytes", "bytes of the files"),
        ("gateway", "gateway sends"),
        ("hosts", "all hosts send"),
        ("busiest_host", "busiest host sends"),
    ):
        counts = [found.get(f"{kind}_{key}") for kind in kinds]
        rows.append([label, *("" if one is None else f"{one / 1e6:.1f} MB" for one in counts)])
    tables.append(table(rows))
    return "\n\n".join(tables)


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description="From a step's end to its version on every host.")
    parser.add_argument("--quick", action="store_true", help="smaller weights")
    quick = parser.parse_args().quick
    logs.configure("bench", "warning", "auto")
    results = run((2 if quick else 16) * TENSOR, (2 if quick else 8) * TENSOR, 3)
    print(f"{text(results)}\nall figures: {keep(results)}")
    return 0
