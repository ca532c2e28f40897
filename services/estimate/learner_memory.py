"""The memory that each rank of the learner needs, and what to change if it does not fit."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from services.contracts.config import RLConfig
from services.contracts.config.model import lora_of
from services.contracts.config.objective.copies import FrozenReference, LaggedProximal, Reference
from services.contracts.config.objective.supervised import DPO
from services.contracts.config.objective.terms import NoKL
from services.contracts.config.training import Offloaded
from services.contracts.devices import GPUDevice, LearnerDevices
from services.estimate import rank_bytes
from services.estimate.answer import ProcessNeed
from services.estimate.inputs import PROMPT, Config, Model, Worker, smallest
from services.estimate.model_shape import ModelShape
from services.estimate.rank_bytes import BFLOAT16, FLOAT32, Memory, Pass
from services.estimate.rollout_memory import ASLEEP, vllm_share

TIGHT = 0.9
"""Estimates are within a tenth."""


def learner_need(
    config: Config, model: Model, learner: LearnerDevices | None, budget: int | None
) -> ProcessNeed:
    """Estimate each rank. `budget`: bytes of its GPU that a rank may take; None if unknown."""
    how = pass_of(config, model, learner, budget)
    memory = rank_memory(config, model, how)
    parts = {name: value for name, value in vars(memory).items() if value}
    kind = "bfloat16" if how.half else "float32"
    again = ", activations computed again" if how.checkpointing else ""
    compiled = ", blocks compiled" if compiles(config, model, learner) else ""
    return ProcessNeed(
        gpu=smallest(learner.gpus).name if learner and learner.gpus else None,
        count=how.ranks,
        memory=budget,
        most=budget,
        needed=memory.total,
        parts=parts,
        fits=None if budget is None else memory.total <= budget,
        how=f"{shared_in_words(how)}, {kind}, {how.tokens:,} tokens a pass{again}{compiled}",
    )


def compiles(config: Config, model: Model, learner: LearnerDevices | None) -> bool:
    """Whether the learner compiles the model's blocks (`learner.model.compiling`), if its machine
    has a compiler."""
    if config.training.compile != "auto":
        return config.training.compile
    return bool(learner and learner.gpus) and not model.shape.experts


def pass_of(
    config: Config, model: Model, learner: LearnerDevices | None, budget: int | None
) -> Pass:
    """Return how a rank of `learner` makes its passes, with every `auto` decided. `budget`: as of
    `learner_need`."""
    on_cpu = learner is not None and not learner.gpus
    ranks = learner.ranks if learner else 1
    dtype = config.model.dtype
    half = dtype == "bfloat16" or (dtype == "auto" and model.half and not on_cpu)
    # Ranks that share a row hold one part each.
    sharing = config.training.context_parallel
    tokens, longest = config.training.tokens_per_microbatch, _longest(config)
    if isinstance(config, RLConfig):
        algorithm = config.algorithm
        samples = algorithm.prompts_per_step * algorithm.samples_per_prompt
        tokens = min(tokens, -(-max(samples * sharing // ranks, 1) * longest // sharing))
    # A sequence that is longer than a micro-batch has one of its own, and so have two answers.
    pair = 2 if _compares(config) else 1
    tokens = max(tokens, -(-pair * min(longest, model.shape.positions or longest) // sharing))
    plain = Pass(ranks, "ddp", half, tokens)
    memory = None if on_cpu else budget
    # DDP's buckets are there between two passes, too.
    needed = held(config, model, plain).total + FLOAT32 * trained_weights(config, model.shape)
    parallel = rank_bytes.parallel_on(config.training.parallel, needed, memory, ranks)
    how, recomputes = replace(plain, parallel=parallel), config.training.activation_checkpointing
    if recomputes == "auto":
        # If all else and the activations exceed the memory, by an estimate that may be off by 10 %.
        kept = rank_memory(config, model, how).total
        recomputes = memory is not None and kept > TIGHT * memory
    return replace(how, checkpointing=recomputes)


def _longest(config: Config) -> int:
    """Tokens of the longest sequence: for RL `max_tokens` and an assumed prompt (PROMPT), for SFT
    `max_seq_len`, or 0 if the config leaves it open."""
    if not isinstance(config, RLConfig):
        return config.data.max_seq_len or 0
    return config.max_tokens + PROMPT


def rank_memory(config: Config, model: Model, how: Pass) -> Memory:
    memory = rank_bytes.added(
        held(config, model, how),
        rank_bytes.in_a_pass(model.shape, trained_weights(config, model.shape), how),
    )
    return replace(memory, runtime=rank_bytes.RUNTIME)


def held(config: Config, model: Model, how: Pass) -> Memory:
    """All that a rank holds between two passes."""
    trained, offload = trained_weights(config, model.shape), config.training.offload
    pass_number = BFLOAT16 if how.half else FLOAT32
    frozen = pass_number if lora_of(config.model) else FLOAT32
    memory = rank_bytes.resident(model.shape, config.optimizer, trained, how, frozen)
    if "optimizer" in offload:
        memory = replace(memory, optimizer=0)
    copies = 0
    for name in copied(config):
        if name not in offload and _is_here(config, name):
            # A copy that follows the policy stays float32.
            still = name == "reference" and isinstance(_reference(config), FrozenReference)
            shape = model.shape if name == "lagged" else model.reference or model.shape
            copies += _frozen(shape, how, pass_number if still else FLOAT32)
    if not isinstance(config, RLConfig):
        return replace(memory, copies=copies)
    critic = config.algorithm.critic
    if critic and "critic" not in offload and _is_here(config, "critic"):
        shape = model.critic or model.shape
        of_critic = rank_bytes.resident(shape, critic.optimizer, shape.parameters, how)
        memory = replace(memory, gradients=memory.gradients + of_critic.gradients)
        copies += of_critic.weights + (0 if "optimizer" in offload else of_critic.optimizer)
    if config.algorithm.loads_teacher and "teacher" not in offload and _is_here(config, "teacher"):
        copies += _frozen(model.teacher or model.shape, how, pass_number)
    published = 0
    if config.rollout.weights == "auto" and how.half and not lora_of(config.model):
        published = _frozen(model.shape, how, BFLOAT16)
    return replace(memory, copies=copies, published=published)


def _frozen(shape: ModelShape, how: Pass, number: int) -> int:
    """Bytes of a frozen model with `number` bytes for each weight."""
    return rank_bytes.resident(shape, None, 0, how, number).total


def _is_here(config: Config, name: Offloaded) -> bool:
    """Whether the model `name` is on the policy's device."""
    return not isinstance(config, RLConfig) or getattr(config.placement, name) == "same"


def _reference(config: Config) -> Reference:
    if not isinstance(config, RLConfig) or isinstance(config.algorithm.kl, NoKL):
        return FrozenReference()
    return config.algorithm.kl.reference


def _compares(config: Config) -> bool:
    """Whether a supervised run compares two answers."""
    return not isinstance(config, RLConfig) and isinstance(config.objective, DPO)


def copied(config: Config) -> list[Offloaded]:
    """Copies of the whole policy that the objective needs. With adapters, the frozen model
    is the reference."""
    if not isinstance(config, RLConfig):
        return ["reference"] if _compares(config) and lora_of(config.model) is None else []
    names: list[Offloaded] = []
    if not isinstance(config.algorithm.kl, NoKL) and config.model.lora is None:
        names.append("reference")
    if isinstance(config.algorithm.proximal, LaggedProximal):
        names.append("lagged")
    return names


def trained_weights(config: Config, shape: ModelShape) -> int:
    lora = lora_of(config.model)
    if lora is None:
        return shape.parameters
    d, q, kv, f = shape.hidden, shape.query, shape.key_value, shape.intermediate
    sizes = {
        "q_proj": d + q, "k_proj": d + kv, "v_proj": d + kv, "o_proj": q + d,
        "gate_proj": d + f, "up_proj": d + f, "down_proj": f + d,
    }  # fmt: skip
    chosen = lora.targets or list(sizes)
    widths = [size for name, size in sizes.items() if any(t.endswith(name) for t in chosen)]
    return lora.rank * shape.layers * sum(widths or sizes.values())


def learner_budget(
    config: Config, learner: LearnerDevices | None, workers: Sequence[Worker]
) -> int | None:
    """Bytes of a GPU that a rank may take; None if unknown."""
    if learner is None or not learner.gpus:
        return None
    return min(int(gpu.memory * (1 - _taken(config, gpu, workers))) for gpu in learner.gpus)


def _taken(config: Config, gpu: GPUDevice, workers: Sequence[Worker]) -> float:
    """The share of a learner's GPU that vLLM has while the learner trains."""
    here = [worker for worker in workers if gpu.uuid in {device.uuid for device in worker.gpus}]
    if not here or not isinstance(config, RLConfig):
        return 0.0
    return ASLEEP / gpu.memory if config.rollout.vllm.sleeps else vllm_share(config, here, True)


def shared_in_words(how: Pass) -> str:
    return f"{how.parallel} on {how.ranks} ranks" if how.ranks > 1 else "one rank"


def learner_advice(config: Config, need: ProcessNeed) -> Iterator[str]:
    """List changes that make the learner's part smaller and are not made yet."""
    training = config.training
    if training.activation_checkpointing is False:
        yield 'set training.activation_checkpointing to "auto"'
    if (
        need.parts.get("activations", 0) > need.needed // 4
        and training.tokens_per_microbatch > 2048
    ):
        yield f"lower training.tokens_per_microbatch (now {training.tokens_per_microbatch})"
        if not need.on_cpu and training.context_parallel == 1 and need.count > 1:
            yield "raise training.context_parallel, so that ranks share a long sequence"
    if not need.on_cpu:
        movable = [*copied(config), "optimizer"]
        if left := [name for name in movable if name not in training.offload]:
            yield f"set training.offload to {json.dumps([*training.offload, *left])}"
        if training.parallel == "ddp":
            yield 'set training.parallel to "auto"'
        yield "train on more GPUs, one rank each"
    if lora_of(config.model) is None:
        yield "train adapters (model.lora)"
    yield f"take a smaller model, or {'a larger host' if need.on_cpu else 'larger GPUs'}"
