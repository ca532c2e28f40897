"""The plan of the ranks' passes: the estimate of the submission, applied to the actual GPUs.

All ranks need the same plan, because they make the passes of a sharded model together. The rank
with the least memory decides.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import AutoConfig

from learner.distributed import Ranks
from learner.model.compiling import Backend
from learner.model.loading.folders import find_source, unusable
from learner.model.passes.mfu import widths
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.model import PretrainedModel
from services.contracts.devices import GPUDevice, LearnerDevices
from services.estimate.inputs import Model, Worker, gigabytes, of_half
from services.estimate.learner_memory import learner_budget, pass_of, rank_memory
from services.estimate.model_shape import ModelShape, shape_of
from services.estimate.rank_bytes import parallel_on
from services.runtime.logs import get_logger

Config = RLConfig | SFTConfig
CHECKPOINTING = "training.activation_checkpointing"
FREE = 0.85
"""Share of a rank's memory that must be free before it loads a run. CUDA's own share is already
taken."""
MEMORY_WAIT_SECONDS = 30.0
"""vLLM gets 10 of them to end by itself (`rollout.vllm.process.server`)."""
MEMORY_POLL_SECONDS = 0.2

log = get_logger(__name__)


@dataclass(frozen=True)
class PassPlan:
    """How every rank makes its passes."""

    parallel: str
    """`ddp` or `fsdp`."""
    checkpointing: bool
    """Whether the backward pass recomputes activations."""
    reason: str
    """Why, in words for the user."""
    compiled: Backend | None = None
    """Backend that compiles the blocks."""

    @property
    def sharded(self) -> bool:
        """Whether each rank holds a slice of every weight."""
        return self.parallel == "fsdp"

    @property
    def activations(self) -> str:
        """How activations are handled, and why, in words for the user."""
        kept = "computed again in the backward pass" if self.checkpointing else "kept"
        return f"{kept}: {self.reason}"


def agreed_plan(
    config: Config,
    ranks: Ranks,
    model: Callable[[], Model | None],
    workers: Callable[[], Sequence[Worker]],
) -> PassPlan:
    """Return the plan, the same on every rank. On CUDA it depends on `model`, which returns None if
    the model's config names no widths, and on the `workers` that sample on the same GPUs. Raises
    what `model` and `workers` raise."""
    parallel = config.training.parallel
    forced = config.training.activation_checkpointing
    if ranks.device.type != "cuda":
        shared = parallel_on(parallel, 0.0, None, ranks.size)
        return PassPlan(shared, forced is True, _without_gpu(forced, ranks.device))
    gpu = gpu_of(ranks.device)
    devices = LearnerDevices(ranks=ranks.size, gpus=[gpu])
    described, sampling = ranks.together(lambda: (model(), workers()))
    share = learner_budget(config, devices, sampling) or gpu.memory
    budget = -int(ranks.max([float(-share)])[0])
    if any(gpu.uuid == each.uuid for worker in sampling for each in worker.gpus):
        await_memory(ranks.device, share)
    return plan_for(config, described, devices, budget)


def await_memory(device: torch.device, wanted: int) -> None:
    """Wait until a GPU has about as much free memory as the run needs, but at most
    MEMORY_WAIT_SECONDS: a worker there may first have to end the vLLM of another run."""
    limit = time.monotonic() + MEMORY_WAIT_SECONDS
    while (free := available(device)) < FREE * wanted:
        if time.monotonic() > limit:
            log.warning(
                "others have memory of this GPU that the run counts on",
                available=gigabytes(free),
                wanted=gigabytes(wanted),
            )
            return
        time.sleep(MEMORY_POLL_SECONDS)


def available(device: torch.device) -> int:
    """Return the bytes of a GPU that this process has or can allocate now."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device))


def plan_for(config: Config, model: Model | None, devices: LearnerDevices, budget: int) -> PassPlan:
    """Return the plan for ranks that may each use `budget` bytes of a GPU."""
    forced = config.training.activation_checkpointing
    if model is None:
        shared = parallel_on(config.training.parallel, 0.0, None, devices.ranks)
        return PassPlan(shared, forced is True, "the model's config names no widths to go by")
    how = pass_of(config, model, devices, budget)
    if forced != "auto":
        return PassPlan(how.parallel, how.checkpointing, f"{CHECKPOINTING} is set")
    kept = rank_memory(config, model, replace(how, checkpointing=False)).total
    need = f"{gigabytes(kept)} of {gigabytes(budget)}"
    why = f"else a rank would need {need}" if how.checkpointing else f"a rank needs {need}"
    return PassPlan(how.parallel, how.checkpointing, why)


def _without_gpu(forced: bool | str, device: torch.device) -> str:
    if forced == "auto":
        return f"the learner computes on a {device.type}, whose memory is not planned"
    return f"{CHECKPOINTING} is set"


def gpu_of(device: torch.device) -> GPUDevice:
    properties = torch.cuda.get_device_properties(device)
    return GPUDevice(
        uuid=f"GPU-{properties.uuid}", name=properties.name, memory=properties.total_memory
    )


def known_model(
    path: str,
    config: PretrainedModel,
    critic: str | None = None,
    teacher: str | None = None,
    reference: str | None = None,
) -> Model | None:
    """Return the sizes of the model at `path` for the estimate, and the sizes of critic, teacher
    and reference if they are other models. Raises UnusableModel."""
    shape, half = _shape(path, config, "model")
    if shape is None:
        return None
    other = _shape(critic, config, "the critic's model")[0] if critic else None
    taught = _shape(teacher, config, "the teacher")[0] if teacher else None
    compared = _shape(reference, config, "the reference")[0] if reference else None
    return Model(shape, half, other, taught, compared)


def _shape(path: str, config: PretrainedModel, what: str) -> tuple[ModelShape | None, bool]:
    source = find_source(path, config.trust_remote_code, what)
    with unusable(source.weights, what):
        read = AutoConfig.from_pretrained(
            source.weights, trust_remote_code=config.trust_remote_code
        )
    return shape_of(widths(read.get_text_config()), source.model.tensors), of_half(read.to_dict())
