"""vLLM's worker for CPUs, on more cores while the learner leaves its own idle."""

from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker

from services.runtime.core_loans import borrowed_cores, core_loan

LINGER = 0.02
"""Seconds between two passes after which the engine counts as idle: scheduling and sampling take a
few milliseconds."""


class BorrowingCPUWorker(CPUWorker):
    """Each pass of the model runs on the engine's own cores, and on the learner's where they are
    idle. vLLM has made and bound a thread for each of both, its own first."""

    def init_device(self) -> None:
        """As vLLM's, which forbids to set the number of threads from here on."""
        self._set_threads = torch.set_num_threads
        own = torch.get_num_threads() - len(borrowed_cores())
        self._loan = core_loan("generating", own, LINGER)
        super().init_device()

    def execute_model(self, *args: Any, **options: Any) -> Any:
        """One pass."""
        if self._loan is None:
            return super().execute_model(*args, **options)
        with self._loan.computing():
            threads = self._loan.own + self._loan.available()
            if threads != torch.get_num_threads():
                self._set_threads(threads)
            return super().execute_model(*args, **options)
