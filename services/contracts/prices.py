"""What GPU-hours cost, as the operator says it, and what the samples of a run cost. Pure."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from pydantic import BaseModel, Field

FORM = "`2.50 USD`, or `2.50 USD,spot=0.90,NVIDIA L4=0.70` with prices of their own for classes"
_PRICE = re.compile(r"(\d+(?:\.\d+)?)(?:\s+(\S{1,8}))?")


class AtWork(NamedTuple):
    """One GPU that works on a run."""

    worker_class: str
    """Its worker's class; '' without one, and for the learner's."""
    name: str
    """What the driver calls it."""


class SamplePrice(BaseModel):
    """What the samples of a run cost, by the GPUs that work on it."""

    per_1000_samples: float = Field(description="Price of 1,000 trained samples.")
    per_hour: float = Field(description="Price of an hour of these GPUs.")
    currency: str = Field(description="As the operator writes it; may be empty.")
    gpus: dict[str, int] = Field(
        description="How many GPUs, by their workers' class, or else by their name."
    )


@dataclass(frozen=True)
class Prices:
    """Prices of a GPU-hour: the usual one, and those of classes of workers or kinds of GPUs."""

    usual: float
    currency: str = ""
    by_class: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `2.50 USD,spot=0.90`. Raises ValueError."""
        first, *others = text.split(",")
        match = _PRICE.fullmatch(first.strip())
        if match is None:
            raise ValueError(f"the price of a GPU-hour is {text!r}: write {FORM}")
        by_class = {}
        for other in others:
            name, _, price = other.rpartition("=")
            if not name.strip() or not (number := _PRICE.fullmatch(price.strip())) or number[2]:
                raise ValueError(f"the price of a GPU-hour has {other.strip()!r}: write {FORM}")
            by_class[name.strip()] = float(number[1])
        return cls(float(match[1]), match[2] or "", by_class)

    def gpu_hour(self, gpu: AtWork) -> float:
        """Return the price of an hour of a GPU: its class's, else its name's, else the usual
        one."""
        return next((self.by_class[name] for name in gpu if name in self.by_class), self.usual)

    def of_samples(self, gpus: Iterable[AtWork], samples_per_second: float) -> SamplePrice | None:
        """Return what samples cost at this rate; None without GPUs or samples."""
        at_work = list(gpus)
        if not at_work or not math.isfinite(samples_per_second) or samples_per_second <= 0:
            return None
        per_hour = sum(map(self.gpu_hour, at_work))
        counts: dict[str, int] = {}
        for gpu in at_work:
            kind = gpu.worker_class or gpu.name
            counts[kind] = counts.get(kind, 0) + 1
        return SamplePrice(
            per_1000_samples=per_hour / (3.6 * samples_per_second),
            per_hour=per_hour,
            currency=self.currency,
            gpus=counts,
        )


def gpus_at_work(
    computation: Mapping[str, str], workers: Iterable[tuple[str, Mapping[str, str]]]
) -> list[AtWork]:
    """Return the GPUs of a run's learner and workers. `computation` is the record's; `workers` have
    a class and their GPUs, names by UUID. A GPU that several workers share counts once, and so does
    one on which learner and vLLM take turns."""
    sampling = {
        uuid: AtWork(worker_class, name)
        for worker_class, gpus in workers
        for uuid, name in gpus.items()
    }
    match = re.match(r"(\d+) × (?!rank)([^,]*)", computation.get("device", ""))
    learning = [AtWork("", match[2])] * int(match[1]) if match else []
    if "gpu" in computation:
        return max(learning, [*sampling.values()], key=len)
    return [*learning, *sampling.values()]
