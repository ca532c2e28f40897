"""Prepare a model's passes: switch off dropout and router noise, recompute activations, compile
blocks.

torch.compile fuses norms, activations and residuals of a block into one pass each. Blocks are
compiled one by one, so that all blocks of a kind share their graphs, for any number of tokens.
Attention is not compiled: it reads the layout of a row, and each layout would need its own graph.
"""

import sys
from functools import cache
from typing import Literal

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from learner.errors import UnusableModel
from learner.model.attention.packed import NAME, packed_attention
from learner.model.pass_weights import CHECKPOINTING
from services.contracts.experts import expert_count

Backend = Literal["inductor", "cudagraphs", "aot_eager", "eager"]
"""`training.compile_backend`. Benchmarks compile without the config package."""
ON_PURPOSE = "Skip calling `torch.compiler.disable()`d function"
"""How torch's reason for a graph break begins if the code asks for it."""
WHY, SET = "training.compile compiles", "training.compile is set"


def compiles(
    configured: Literal["auto"] | bool,
    model: PreTrainedModel,
    device: torch.device,
    backend: Backend = "inductor",
) -> tuple[Backend | None, str]:
    """Return the backend that compiles the blocks of `model` on `device`, or None, and the reason
    in words for the user. Call it once per run, before anything is compiled: it drops the graphs of
    earlier runs. Raises UnusableModel if the config requires an impossible compilation."""
    if "torch._dynamo" in sys.modules:
        # Old graphs would count against the few that torch keeps for a block's or an optimizer's
        # code.
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
    if configured is False:
        return None, f"off: {SET}"
    if configured == "auto" and (why := _not_worth(model, device)):
        return None, f"off: {why}"
    if why := _cannot_compile(device, backend):
        if configured == "auto":
            return None, f"off: {why}"
        raise UnusableModel(f"training.compile: {why}; install gcc, or leave training.compile out")
    # With `auto`, a block that fails to compile later runs uncompiled.
    torch._dynamo.config.suppress_errors = configured == "auto"
    why = "the learner computes on CUDA" if configured == "auto" else SET
    return backend, f"on: {why}" + (f" (backend {backend})" if backend != "inductor" else "")


def compile_metrics() -> dict[str, float]:
    """Return what torch has compiled in this run: graphs, graph breaks without those that attention
    makes on purpose, and pieces of code that torch could not compile. Empty if nothing was to be
    compiled."""
    if "torch._dynamo" not in sys.modules:
        return {}
    counters = torch._dynamo.utils.counters
    if not (tried := counters["frames"]["total"]):
        return {}
    breaks = counters["graph_break"].items()
    return {
        "compile/graphs": float(counters["stats"]["unique_graphs"]),
        "compile/graph_breaks": float(
            sum(n for why, n in breaks if not why.startswith(ON_PURPOSE))
        ),
        "compile/failed": float(tried - counters["frames"]["ok"]),
    }


def _not_worth(model: PreTrainedModel, device: torch.device) -> str | None:
    """Return why compiling blocks of `model` would not pay, or None."""
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
    """Try to compile for `device`. Return why it fails on this machine, or None."""
    x = torch.ones(8, device=device, requires_grad=True)
    try:
        torch.compile(lambda x: (x.sin() * x).sum(), backend=backend)(x).backward()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        return f"this machine cannot compile ({reason[:200]})"
    return None


def compile_blocks(model: PreTrainedModel, backend: Backend) -> None:
    """Have the blocks of `model` compiled at their first use, which takes half a minute and a C
    compiler. Raises UnusableModel if the model does not name its blocks."""
    stack = blocks(model, WHY)
    # Registered for all models: without compilation it changes nothing.
    AttentionInterface.register(NAME, torch.compiler.disable(packed_attention))
    for block in stack:
        block.compile(dynamic=True, backend=backend)


def make_trainable(model: PreTrainedModel, checkpointing: bool, compiled: Backend | None) -> None:
    """Disable dropout and router noise in the passes of `model`, whatever its own config says. The
    sampler has neither, and ratios would be random. `checkpointing`: recompute a block's
    activations in the backward pass; `compiled`: backend that compiles the blocks."""
    model.eval()
    if checkpointing:
        model.gradient_checkpointing_enable(CHECKPOINTING)
        for module in model.modules():
            if getattr(module, "gradient_checkpointing", False):
                # transformers recomputes activations only in training mode, which also enables a
                # block's own dropout.
                module.training = True
                vars(module).update({n: 0.0 for n, v in vars(module).items() if _drops(n, v)})
    if compiled:
        compile_blocks(model, compiled)


def _drops(name: str, value: object) -> bool:
    return isinstance(value, float) and "drop" in name


def blocks(model: PreTrainedModel, why: str) -> list[nn.Module]:
    """Return the stacked blocks of `model`. Raises UnusableModel, with the reason `why` they are
    needed, if the model does not name its blocks."""
    kinds = set(model._no_split_modules or ())
    stack = [module for module in model.modules() if type(module).__name__ in kinds]
    if not stack:
        raise UnusableModel(
            f"{type(model).__name__} does not say what its blocks are, which {why}: leave it out"
        )
    return stack
