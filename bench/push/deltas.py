"""`python -m bench.push.deltas`: what a version takes as a delta, and whether it is exact.

A small model is trained until its weights have grown from their random start, then for 200 steps
with AdamW at a learning rate of 1e-6, on a new batch with random advantages in each step.
A learner's own publisher writes every version. A reader that knows nothing but the newest manifest
reads each one, and every tensor has to be equal to the learner's, bit for bit. CPU seconds say
what taking a version adds to a step.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from learner.distributed import Ranks
from learner.model.canary import CanaryPass
from learner.model.loading.scratch import make_model
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from learner.optim.optimizers import Optimizers
from learner.persist.disk_retry import Disk
from learner.persist.publisher import Publisher
from learner.persist.versions import Versions, host_weights
from services.contracts.config.model import ScratchModel
from services.contracts.config.optimizer import AdamW
from services.contracts.weights import WeightManifest
from services.weights import DeltaReader, WholeVersion

ALONE = Ranks(0, 1, torch.device("cpu"))
SEQUENCES, LENGTH, VOCABULARY = 8, 32, 20


class NoStatus:
    """A run that nobody watches."""

    def pause(self, reason: str) -> None:
        raise OSError(reason)

    def go_on(self) -> None: ...

    def cancelled(self) -> bool:
        return False

    def hold(self) -> None: ...


def train(policy: TokenLogprobs, optimizers: Optimizers, generator: torch.Generator) -> None:
    """One step on a new batch, with a random advantage for each token."""
    rows = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    mask = torch.ones(LENGTH, dtype=torch.bool)
    mask[0] = False
    logprobs, _ = policy(packed_row(list(rows), [mask] * SEQUENCES))
    advantages = torch.randn(len(logprobs), generator=generator)
    (-(logprobs * advantages).mean()).backward()
    optimizers.last_pass()
    optimizers.step()


def read(root: Path, manifest: WeightManifest) -> dict[str, torch.Tensor]:
    """The bits of all tensors, from the manifest's files."""
    whole, *deltas = [root / file.name for file in manifest.files]
    with ExitStack() as stack:
        version = WholeVersion(whole, [stack.enter_context(DeltaReader(path)) for path in deltas])
        return {name: torch.from_numpy(version.tensor(name)) for name in version.shapes}


@contextmanager
def cpu(spent: dict[str, float], what: str) -> Iterator[None]:
    """Add the CPU seconds of this process, of all its threads, to those of `what`."""
    began = time.process_time()
    yield
    spent[what] += time.process_time() - began


def measure(root: Path, steps: int, lr: float, grown: int, hidden: int) -> dict[str, float]:
    """The figures. Raises AssertionError where a version is not the learner's."""
    size = ScratchModel(
        source="scratch", hidden_size=hidden, layers=4, heads=4, intermediate_size=4 * hidden
    )
    loaded = make_model(size, 0)
    loaded.publish_dtype = torch.bfloat16
    policy, generator = TokenLogprobs(loaded.model), torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    first = Optimizers(loaded.model, AdamW(lr=3e-3))
    for _ in range(grown):
        train(policy, first, generator)
    optimizers = Optimizers(loaded.model, AdamW(lr=lr))
    versions = Versions(loaded, ALONE, "auto")
    manifests: list[WeightManifest] = []
    publisher = Publisher(
        root,
        "r",
        "a",
        Disk(root, NoStatus(), threading.Event()),
        manifests.append,
        list,
        versions.deltas,
    )
    canary = CanaryPass(loaded, policy, None)
    shares, spent = [], defaultdict[str, float](float)
    for version in range(steps + 1):
        with cpu(spent, "step"):
            train(policy, optimizers, generator)
        with cpu(spent, "canary"):
            canary()
        with cpu(spent, "taking"):
            taken = versions.take(version, 0.0)
        with cpu(spent, "publishing"):
            publisher.submit(taken)
            publisher.wait()
        found, expected = read(root, manifests[-1]), host_weights(loaded, version, 0.0).tensors
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            same = torch.equal(found[name].view(torch.int16), tensor.view(torch.int16))
            assert same, f"{name} of version {version} differs"
        if publisher.pushed and publisher.pushed.changed is not None:
            shares.append(publisher.pushed.changed)
    publisher.close()
    (full,) = manifests[0].files
    sizes = [one.files[-1].bytes / full.bytes for one in manifests if one.kind == "delta"]
    return {
        "full_bytes": full.bytes,
        "versions": len(manifests),
        "whole": len(manifests) - len(sizes),
        "changed": sum(shares) / len(shares),
        "delta": sum(sizes) / len(sizes),
        "largest_delta": max(sizes),
        "weights": sum(tensor.numel() for tensor in loaded.model.parameters()),
        **{f"cpu_seconds_of_{name}": seconds / len(manifests) for name, seconds in spent.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--grown", type=int, default=100, help="steps at 3e-3 before")
    parser.add_argument("--hidden", type=int, default=128)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.steps, given.lr, given.grown, given.hidden)
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
