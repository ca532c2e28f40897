"""The cores that a rank trains on, on a machine without a GPU: its own, and idle ones of vLLM.

The number of threads changes between passes, and with it the order of sums: two runs of one batch
are equal to rounding, and bit for bit only where nothing can be borrowed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from learner.model.passes.families import unwrapped
from learner.state import TrainingState
from services.runtime.core_loans import core_loan


class TrainingCores:
    """Asks before each pass of each model how many threads it may have.

    Only within `computing`: passes between two batches (a version's canary) are short, and what
    they borrowed nobody would give back, also not to the next run of this process.
    """

    def __init__(self, state: TrainingState) -> None:
        self._own = torch.get_num_threads()
        self._loan = core_loan("training", self._own)
        self._computing = False
        if self._loan is None:
            return
        copies = (state.copies.reference, state.copies.lagged)
        models: list[nn.Module] = [copy.logprobs for copy in copies if copy]
        models.append(unwrapped(state.policy))
        if state.critic:
            models.append(unwrapped(state.critic.values))
        for model in models:
            model.register_forward_pre_hook(self._take)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A block of passes, in which vLLM gets no core of this rank."""
        if self._loan is None:
            yield
            return
        self._computing = True
        try:
            with self._loan.computing():
                yield
        finally:
            self._computing = False
            torch.set_num_threads(self._own)

    def _take(self, *_: object) -> None:
        assert self._loan is not None
        if self._computing:
            torch.set_num_threads(self._own + self._loan.available())
