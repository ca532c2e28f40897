"""What the figures are held against. Pure; an aim without a figure is neither met nor missed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ORIENTATION = {
    "what": "TRL 1.16 GRPOTrainer, 32 prompts x 8 samples x 64 tokens",
    "samples_per_second": 55.0,
    "tokens_per_second": 3530.0,
    "source": "seen elsewhere on a 2-core machine, not measured in this run",
}


@dataclass(frozen=True)
class Aim:
    """One figure and its limit. `figure` is None where it was not measured."""

    name: str
    figure: float | None
    relation: Literal["at least", "at most"]
    limit: float

    @property
    def met(self) -> bool | None:
        """Whether the figure keeps to the limit; None where there is none."""
        if self.figure is None:
            return None
        return (
            self.figure >= self.limit
            if self.relation == "at least"
            else (self.figure <= self.limit)
        )


def aims(training: Mapping[str, Mapping[str, Any]], generation: Mapping[str, Any]) -> list[Aim]:
    """All aims over the parts' results: `training` by the name of its part, as `bench.run` keeps
    them. Of several runs, the worst counts on the wire."""
    found = [
        Aim(
            f"trained samples/s at η = {eta}",
            training.get(f"eta-{eta}", {}).get("samples_per_second"),
            "at least",
            float(str(ORIENTATION["samples_per_second"])),
        )
        for eta in (1, 4)
    ]
    wires = [part["wire_bytes_per_token"] for part in training.values()]
    return [
        *found,
        Aim("generation, worker / offline", generation.get("ratio"), "at least", 0.9),
        Aim("bytes per token on the wire", max(wires, default=None), "at most", 12.0),
    ]
