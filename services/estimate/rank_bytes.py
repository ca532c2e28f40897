"""Memory of one rank of the learner, in bytes.

Widths of what autograd keeps were counted on transformers' Llama and Qwen3 blocks with packed
attention (tests/unit/estimate/test_rank_bytes.py counts them again); what FSDP holds follows
`torch.distributed.fsdp.fully_shard`, and tests/unit/bench/test_scale.py compares the sum with a
tracker.
"""

from dataclasses import dataclass
from typing import Literal

from services.contracts.config.optimizer import AdamW8bit, MuonAdamW, Optimizer
from services.estimate.model_shape import ModelShape

FLOAT32, BFLOAT16 = 4, 2
SHARE = 0.5
"""The share of a GPU that DDP may hold between two passes. Activations and vLLM get the rest."""
CHUNK = 2048 * 8192 * FLOAT32
"""A chunk of logits on a GPU (`learner.model.head.output_head`); three are there at a time."""
RUNTIME = 2 << 30
"""CUDA's and NCCL's own, and what the allocator cannot use."""

Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Pass:
    ranks: int
    parallel: Parallel
    half: bool
    """Whether passes are in bfloat16; weights are float32 all the same."""
    tokens: int
    """Tokens of one forward and backward pass."""
    checkpointing: bool = False
    """Activations are computed again in the backward pass."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    copies: int = 0
    """Reference, lagged policy, teacher, and critic with its optimizer; `gradients` has its own."""
    published: int = 0
    """The weights of the version before, to find what a step has changed (`rollout.weights`)."""
    buffers: int = 0
    """DDP's buckets, and weights in the type of the pass; what FSDP gathers and reduces."""
    activations: int = 0
    logits: int = 0
    """The output head's bytes: chunks of logits, its hidden states, and its gradient."""
    runtime: int = 0

    @property
    def total(self) -> int:
        """The sum, which is the peak: the last micro-batch of a step holds all parts at once."""
        return sum(vars(self).values())


def state_bytes(optimizer: Optimizer, shape: ModelShape, trained: int) -> int:
    if isinstance(optimizer, AdamW8bit):
        return 2 * trained
    if isinstance(optimizer, MuonAdamW):
        # One moment for matrices in blocks, two for the rest.
        rest = min(shape.embedding + shape.head, trained)
        return FLOAT32 * (trained + rest)
    return 2 * FLOAT32 * trained


def resident(
    shape: ModelShape, optimizer: Optimizer | None, trained: int, how: Pass, frozen: int = FLOAT32
) -> Memory:
    """Return the memory that a model holds between two passes.

    `optimizer` trains `trained` weights; every other weight takes `frozen` bytes.
    """
    slices = how.ranks if how.parallel == "fsdp" else 1
    still = (shape.parameters - trained if optimizer else shape.parameters) * frozen
    if optimizer is None:
        return Memory(weights=-(-still // slices))
    state = state_bytes(optimizer, shape, trained)
    every = Memory(weights=FLOAT32 * trained + still, gradients=FLOAT32 * trained, optimizer=state)
    return Memory(**{name: -(-value // slices) for name, value in vars(every).items()})


def in_a_pass(shape: ModelShape, trained: int, how: Pass) -> Memory:
    """Return the memory that a forward and backward pass adds at its peak."""
    kept = activations(shape, how)
    head = logits(shape, how, trained == shape.parameters)
    if how.checkpointing:
        # A block is computed again, and its gradients reduced, after the head's backward pass.
        head = max(head - of_a_block(shape, how) - _of_reduction(shape, how), 0)
    return Memory(activations=kept, logits=head, buffers=_buffers(shape, trained, how, kept + head))


def activations(shape: ModelShape, how: Pass) -> int:
    """Bytes that all layers keep for the backward pass.

    With checkpointing, these are the input of each layer, and all of one layer while it is computed
    again.
    """
    if not how.checkpointing:
        return how.tokens * _kept_by_token(shape, how) * shape.layers
    number = BFLOAT16 if how.half else FLOAT32
    return how.tokens * number * shape.hidden * shape.layers + of_a_block(shape, how)


def of_a_block(shape: ModelShape, how: Pass) -> int:
    """Bytes of one block in its backward pass: kept values and gradients of its widest part."""
    number = BFLOAT16 if how.half else FLOAT32
    return how.tokens * (_kept_by_token(shape, how) + 3 * number * shape.intermediate)


def _kept_by_token(shape: ModelShape, how: Pass) -> int:
    """Bytes that autograd keeps of a token in one block."""
    wide = 16 if how.half else 24
    number = BFLOAT16 if how.half else FLOAT32
    attended = shape.query + shape.key_value
    token = wide * shape.hidden + 4 * number * shape.intermediate + 2 * number * attended
    # A router's copies of a token for each of its experts.
    token += shape.experts_used * 3 * number * shape.hidden
    if shape.query_norm:
        token += (6 if how.half else 8) * attended
    return token


def logits(shape: ModelShape, how: Pass, trains_head: bool) -> int:
    """Bytes of the output head at its peak, which is in its backward pass."""
    number = BFLOAT16 if how.half else FLOAT32
    gradient = shape.vocabulary * shape.hidden * FLOAT32 if trains_head else 0
    hidden = how.tokens * shape.hidden * (2 * FLOAT32 + number)
    return 3 * CHUNK + hidden + gradient


def _buffers(shape: ModelShape, trained: int, how: Pass, others: int) -> int:
    """Bytes of the buffers of a pass.

    `others`: bytes that the pass holds besides, before the backward pass of the last block.
    """
    number = BFLOAT16 if how.half else FLOAT32
    if how.parallel == "ddp":
        buckets = FLOAT32 * trained if how.ranks > 1 else 0
        in_blocks = shape.parameters - shape.embedding - shape.head
        casts = BFLOAT16 * in_blocks if how.half and trained == shape.parameters else 0
        return buckets + casts
    # Embedding, head and last norm are gathered together; blocks one by one, the next one ahead.
    root = number * (shape.embedding + shape.head)
    of_head = number * (shape.head or shape.embedding)
    in_blocks = root + of_head + 2 * number * shape.block + _of_reduction(shape, how)
    # At the end: the root's gradients, and the buffer that they are reduced in; nothing else.
    at_end = root + FLOAT32 * (shape.embedding + shape.head)
    return max(in_blocks, at_end - others)


def _of_reduction(shape: ModelShape, how: Pass) -> int:
    """Bytes of FSDP's gradients of one block, and of the buffer with the previous block's."""
    if how.parallel == "ddp":
        return 0
    return shape.block * ((BFLOAT16 if how.half else FLOAT32) + FLOAT32)


def parallel_on(parallel: str, needed: float, memory: float | None, ranks: int) -> Parallel:
    """Resolve `training.parallel`.

    `needed`: bytes that a rank would hold between two passes without sharding. `memory`: bytes of
    its GPU; None on a CPU.
    """
    if ranks == 1 or parallel == "ddp":
        return "ddp"
    if parallel == "fsdp":
        return "fsdp"
    return "ddp" if memory is None or needed <= SHARE * memory else "fsdp"


def added(memory: Memory, other: Memory) -> Memory:
    """Add two memories that are held at the same time."""
    return Memory(**{name: value + getattr(other, name) for name, value in vars(memory).items()})
