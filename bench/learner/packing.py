"""`python -m bench.learner.packing`: how much of packed rows stays empty, or is cropped, by best
fit and by first-come packing, on conversations of mixed lengths.

First-come packing takes conversations in their order: one that does not fit ends its row (`pad`),
or loses its end (`crop`). It is best fit from a buffer of one. Lengths alone: nothing is trained.
"""

import argparse
from collections.abc import Iterator
from itertools import count

import numpy as np
import numpy.typing as npt

from learner.batch.best_fit import BestFit, Crop

ROW = 2048
BUFFERS = (1, 100, 1000)
SEED = 0
KINDS: dict[str, Crop | None] = {
    "empty": None,
    "shortest cropped": "shortest",
    "first cropped": "first",
}
Lengths = npt.NDArray[np.int64]


def mixtures(conversations: int) -> Iterator[tuple[str, Lengths]]:
    """Names and lengths, none above a row's."""
    random = np.random.default_rng(SEED)
    for median, spread in ((150, 0.8), (300, 1.0), (600, 0.8)):
        drawn = random.lognormal(np.log(median), spread, conversations)
        yield f"lognormal, median {median}", drawn.astype(np.int64).clip(2, ROW)
    short, long = random.integers(20, 200, conversations), random.integers(500, ROW, conversations)
    both = np.where(random.random(conversations) < 0.5, short, long)
    yield "half 20 to 200, half 500 to 2,048", both
    yield "uniform, 2 to 2,048", random.integers(2, ROW + 1, conversations)


def wasted(lengths: Lengths, buffer: int, crop: Crop | None) -> float:
    """The share of room that stays empty; with `crop` the share of tokens that no row has."""
    following = zip(count(), lengths.tolist(), strict=False)
    packing = BestFit(ROW, buffer, crop)
    rows = held = lost = 0
    while placed := packing.row(following):
        rows += 1
        held += sum(one.tokens for one in placed)
        lost += sum(one.lost for one in placed)
    return lost / (held + lost) if crop else 1 - held / (rows * ROW)


def main() -> None:
    """Print the shares as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=50_000)
    conversations = parser.parse_args().conversations
    heads = [f"{kind}, {buffer:,}" for kind in KINDS for buffer in BUFFERS]
    print(f"| Lengths | {' | '.join(heads)} |\n| --- |{' ---: |' * len(heads)}")
    for name, lengths in mixtures(conversations):
        found = [wasted(lengths, buffer, crop) for crop in KINDS.values() for buffer in BUFFERS]
        print(f"| {name} | {' | '.join(f'{share:.2%}' for share in found)} |")


if __name__ == "__main__":
    main()
