"""How a model makes its passes: without noise, with recomputed activations, compiled.

torch.compile is for the blocks: norms, activations and residuals become one pass each.

Blocks are compiled one by one, so that all of a kind share their graphs, for any number of tokens.
Attention stays as it is: it reads the layout of a row, and each layout would be another graph.
"""

import sys
from functools import cache
from typing import Literal

import torch
from transformers import AttentionInterface, PreTrainedModel

from learner.errors import UnusableModel
from learner.model.attention.packed import NAME, packed_attention
from learner.model.placement.blocks import blocks
from services.contracts.experts import expert_count

Backend = Literal["inductor", "cudagraphs", "aot_eager", "eager"]
"""`training.compile_backend`; benchmarks compile without the package of the config."""
WHY, SET = "training.compile compiles", "training.compile is set"


def compiles(
    configured: Literal["auto"] | bool,
    model: PreTrainedModel,
    device: torch.device,
    backend: Backend = "inductor",
) -> tuple[Backend | None, str]:
    """The backend that compiles the blocks of `model` for `device`, or None, and why, for people.
    Asked once a run, before anything of it is compiled: graphs of earlier runs go. Raises
    UnusableModel if the config asks for what cannot be."""
    if "torch._dynamo" in sys.modules:
        # They would count against the few that torch keeps of a block's code, or of an optimizer's.
        torch.compiler.reset()
    if configured is False:
        return None, f"off: {SET}"
    if configured == "auto" and (why := _not_worth(model, device)):
        return None, f"off: {why}"
    if why := _cannot_compile(device, backend):
        if configured == "auto":
            return None, f"off: {why}"
        raise UnusableModel(f"training.compile: {why}; install gcc, or leave training.compile out")
    # What fails later on, in a block, runs as it is.
    torch._dynamo.config.suppress_errors = configured == "auto"
    why = "the learner computes on CUDA" if configured == "auto" else SET
    return backend, f"on: {why}" + (f" (backend {backend})" if backend != "inductor" else "")


def _not_worth(model: PreTrainedModel, device: torch.device) -> str | None:
    """Why blocks of `model` are better not compiled."""
    if device.type == "cpu":
        return "on a CPU it takes half a minute at each start, and gains a few percent"
    if expert_count(model.config.get_text_config()):
        return "routers of experts are read within the blocks, which cuts them into small graphs"
    try:
        blocks(model, WHY)
    except UnusableModel as error:
        return str(error)
    return None


@cache
def _cannot_compile(device: torch.device, backend: Backend) -> str | None:
    """Why nothing can be compiled for `device` on this machine, by trying it; None: it can."""
    x = torch.ones(8, device=device, requires_grad=True)
    try:
        torch.compile(lambda x: (x.sin() * x).sum(), backend=backend)(x).backward()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[0] if lines else type(error).__name__
        return f"this machine cannot compile ({said[:200]})"
    return None


def compile_blocks(model: PreTrainedModel, backend: Backend) -> None:
    """Compile the blocks of `model` when they are first used, which takes half a minute and a C
    compiler. Raises UnusableModel where it does not say what its blocks are."""
    found = blocks(model, WHY)
    # For all models: it changes nothing where nothing is compiled.
    AttentionInterface.register(NAME, torch.compiler.disable(packed_attention))
    for block in found:
        block.compile(dynamic=True, backend=backend)


def make_trainable(model: PreTrainedModel, checkpointing: bool, compiled: Backend | None) -> None:
    """Have `model` make its passes without dropout and without noise in routers, whatever its own
    config says: the sampler has none, and ratios would be random. `checkpointing`: a block's
    activations are computed again in the backward pass; `compiled`: the backend that compiles the
    blocks."""
    model.eval()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for module in model.modules():
            if getattr(module, "gradient_checkpointing", False):
                # transformers recomputes in training mode alone, in which a block drops by itself.
                module.training = True
                vars(module).update({n: 0.0 for n, v in vars(module).items() if _drops(n, v)})
    if compiled:
        compile_blocks(model, compiled)


def _drops(name: str, value: object) -> bool:
    return isinstance(value, float) and "drop" in name
