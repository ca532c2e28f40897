"""The learner's side of a GPU on which the learner and vLLM take turns (`rollout.vllm.sleeps`).

The learner has the GPU except while it waits for workers: for groups, or for answers of an
evaluation. During that wait, everything that it holds between two batches is in the host's memory.
"""

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from learner.distributed import Ranks
from learner.errors import RunCannotGoOn
from learner.model.pass_plan import await_memory, gpu_of
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.placement.offload import Offload
from learner.slices import local
from learner.state import TrainingState
from services.contracts.config import RLConfig
from services.estimate.inputs import gigabytes
from services.estimate.rollout_memory import ASLEEP
from services.runtime.gpu_handover import Handover
from services.runtime.logs import get_logger

log = get_logger(__name__)

ASKING_SECONDS = 0.5
"""Seconds between two checks whether the run should end."""
ENDING_SECONDS = 10.0
"""Seconds that a learner waits for the GPU to make the last checkpoint after its run was asked to
end."""
PATIENCE_SECONDS = 15.0
"""A longer wait for the GPU is worth a warning: vLLM falls asleep in seconds."""
WAITING = (
    "vLLM is not asleep yet, or another learner has the GPU (rollout.vllm.sleeps). The worker ends "
    "a vLLM that does not fall asleep"
)

Tensors = Callable[[], Iterable[torch.Tensor]]


class TrainingGPU:
    """The GPU that a run is trained on. Without a `handover` the learner always has it."""

    def __init__(
        self,
        handover: Handover | None = None,
        moves: bool = False,
        ready: Callable[[], None] = lambda: None,
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        """`moves`: move the learner's tensors to the host while vLLM has the GPU; `ready`: wait
        until vLLM's memory is free; `ends`: whether the run should end."""
        self._handover, self._moves, self._ready = handover, moves, ready
        self._ends = ends
        self._has = False
        self._held: tuple[Tensors, Tensors] = (tuple, tuple)
        self._moved: tuple[Offload, Offload] | None = None

    @property
    def in_turns(self) -> bool:
        """Whether vLLM uses this GPU between batches."""
        return self._handover is not None

    def holds(self, changing: Tensors, still: Tensors) -> None:
        """Register the learner's tensors on the GPU between two batches, each once: those that
        training changes, and those that it does not."""
        self._held = changing, still

    def take(self) -> bool:
        """Take the GPU: wait until vLLM sleeps. Return False if the run should end first and vLLM
        does not release the GPU soon after. Raises what `ends` raises."""
        if self._handover is None or self._has:
            return True
        began = asked = time.monotonic()
        ending_since: float | None = None
        warned = False

        def gives_up() -> bool:
            nonlocal asked, ending_since, warned
            now = time.monotonic()
            if ending_since is None and now - asked >= ASKING_SECONDS:
                asked = now
                ending_since = now if self._ends() else None
            if not warned and now - began > PATIENCE_SECONDS:
                warned = True
                log.warning("the learner waits for its GPU", reason=WAITING)
            return ending_since is not None and now - ending_since > ENDING_SECONDS

        if not self._handover.begin_to_train(gives_up):
            return False
        self._has = True
        self._ready()
        for offload in self._moved or ():
            offload.load()
        return True

    def leave(self) -> None:
        """Release the GPU to vLLM until the next `take`."""
        if self._handover is None or not self._has:
            return
        if self._moved is not None:
            changing, still = self._moved
            changing.store(changed=True)
            still.store(changed=False)
        elif self._moves:
            changing, still = map(Offload, self._held)
            self._moved = changing, still
        self._free()
        self._has = False
        self._handover.leave()

    def close(self) -> None:
        """Release the GPU to vLLM for good and free the learner's tensors there."""
        if self._handover is None:
            return
        try:
            if self._moves:
                for tensors in self._held:
                    for tensor in tensors():
                        local(tensor).untyped_storage().resize_(0)
            self._free()
        finally:
            self._handover.close()

    def _free(self) -> None:
        """Give the allocator's cached memory back to the device."""
        if self._moves:
            gc.collect()
            torch.cuda.empty_cache()


@contextmanager
def training_gpu(
    config: RLConfig, ranks: Ranks, root: Path, ends: Callable[[], bool]
) -> Iterator[TrainingGPU]:
    """Provide the GPU for the length of the block. `root`: the data volume; `ends`: whether the run
    should end. Raises RunCannotGoOn."""
    if not config.rollout.vllm.sleeps:
        yield TrainingGPU()
        return
    if ranks.size > 1:
        raise RunCannotGoOn(
            f"the learner has {ranks.size} ranks, and takes turns with vLLM on one GPU "
            "(rollout.vllm.sleeps): set it to false and rollout.vllm.gpu_memory_utilization to "
            "null, or start the learner with one rank"
        )
    device = ranks.device
    if device.type == "cuda":
        gpu = gpu_of(device)
        name, memory = gpu.uuid, gpu.memory - ASLEEP
        log.info("learner and vLLM take turns on the GPU", for_training=gigabytes(memory))
        training = TrainingGPU(
            Handover(root / "gpu-locks", name), True, lambda: await_memory(device, memory), ends
        )
    else:
        training = TrainingGPU(Handover(root / "gpu-locks", device.type), ends=ends)
    try:
        yield training
    except BaseException:
        # A broken GPU cannot free anything either: keep the first error, which says why.
        with suppress(RuntimeError):
            training.close()
        raise
    training.close()


def still(state: TrainingState) -> Iterator[torch.Tensor]:
    """Yield the tensors of `state` on the policy's device that training does not change, each once,
    except those that `training.offload` keeps on the host."""
    yield from (p for p in state.loaded.model.parameters() if not p.requires_grad)
    yield from _of_copies(state, follow=False)


def changing(state: TrainingState) -> Iterator[torch.Tensor]:
    """Yield the tensors of `state` on the policy's device that training changes, each once, except
    those that `training.offload` keeps on the host."""
    yield from (p for p in state.loaded.model.parameters() if p.requires_grad)
    yield from _of_copies(state, follow=True)
    critic, states = state.critic, []
    if critic and not critic.offloaded_weights:
        yield from critic.model.parameters()
    if not state.offloads:
        states.append(state.optimizers.state())
    if critic and not critic.offloaded_state:
        states.append(critic.optimizers.state())
    # Some optimizers count their steps on the host.
    device = state.loaded.model.device
    yield from (t for each in states for t in each.values() if t.device == device)


def _of_copies(state: TrainingState, follow: bool) -> Iterator[torch.Tensor]:
    """Yield the weights of the copies that follow the policy, or of the copies that do not; those
    on the host (`training.offload`) and copies without a model here are left out."""
    for copy in (state.copies.reference, state.copies.lagged, state.copies.teacher):
        # With adapters the reference is the policy without its adapters, not a copy.
        if copy is None or copy.offload or not isinstance(copy.logprobs, TokenLogprobs):
            continue
        if (copy.following is not None) == follow:
            yield from copy.logprobs.model.parameters()
