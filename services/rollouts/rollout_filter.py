"""Which kept answers are wanted, decided on the records of the index."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.contracts.groups.rollout import RolloutStatus
from services.rollouts.index_record import Records, dataset_key, status_key


@dataclass(frozen=True)
class RolloutFilter:
    """The answers that are wanted. None: all."""

    step: int | None = None
    group: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    status: RolloutStatus | None = None
    row: int | None = None
    dataset: str | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None

    def matches(self, records: Records) -> npt.NDArray[np.bool_]:
        """[n] bool: the records that fit."""
        fits = np.ones(len(records), np.bool_)
        bounds: tuple[tuple[str, Any, Any], ...] = (
            ("step", self.step, self.step),
            ("group", self.group, self.group),
            ("row", self.row, self.row),
            ("reward", self.min_reward, self.max_reward),
            ("tokens", self.min_tokens, self.max_tokens),
        )
        for name, low, high in bounds:
            if low is not None:
                fits &= records[name] >= low
            if high is not None:
                fits &= records[name] <= high
        if self.dataset is not None:
            fits &= records["dataset"] == dataset_key(self.dataset)
        match self.status:
            case None:
                pass
            case RolloutStatus.TRUNCATED:
                fits &= records["truncated"]
            case RolloutStatus.UNTRAINED:
                fits &= ~records["trained"]
            case status:
                fits &= records["status"] == status_key(status)
        return fits
