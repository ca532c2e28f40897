"""Compiled blocks: equal numbers for any row, and equal names."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from transformers import PreTrainedModel

from learner.coordinate.process_report import ProcessReport
from learner.errors import UnusableModel
from learner.model import compiling
from learner.model.attention.packed import NAME
from learner.model.compiling import compile_blocks, compile_metrics, compiles
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from services.contracts.config.training import Automatic
from tests.unit.learner.experts import tiny_mixture
from tests.unit.learner.policies import tiny_model

ROWS = [[5, 5], [9, 3, 7], [12, 2, 2, 6]]


def passes(model: torch.nn.Module) -> list[torch.Tensor]:
    """Log-probabilities and gradients of rows of different lengths, and of a pass without
    gradient."""
    policy, found = TokenLogprobs(model), []
    generator = torch.Generator().manual_seed(0)
    for lengths in ROWS:
        row = packed_row(
            [torch.randint(4, 20, (n,), generator=generator) for n in lengths],
            [torch.arange(n) >= 1 for n in lengths],
        )
        logprobs, _ = policy(row, 0.8)
        logprobs.sum().backward()
        with torch.no_grad():
            found += [logprobs.detach(), policy(row, 0.8)[0]]
    return found + [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.timeout(300)
def test_compiled_blocks_compute_and_learn_the_same_for_any_row() -> None:
    plain, compiled = tiny_model().model, tiny_model().model
    names = list(compiled.state_dict())
    compile_blocks(compiled, "inductor")
    assert list(compiled.state_dict()) == names
    for found, expected in zip(passes(compiled), passes(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    # Another row needs no new graph.
    passes(compiled)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_a_backend_that_only_traces_computes_the_same_without_writing_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", None)
    assert compiling._cannot_compile.__wrapped__(torch.device("cpu"), "aot_eager") is None
    plain, traced = tiny_model().model, tiny_model().model
    compile_blocks(traced, "aot_eager")
    for found, expected in zip(passes(traced), passes(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


def test_compiled_blocks_recompute_their_activations_with_checkpointing() -> None:
    plain, compiled = tiny_model().model, tiny_model().model
    compiled.gradient_checkpointing_enable({"use_reentrant": False})
    compile_blocks(compiled, "inductor")
    for found, expected in zip(passes(compiled.train()), passes(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_auto_compiles_on_cuda_and_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device decides by its kind alone: nothing computes on it here."""
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    dense, without = tiny_model().model, tiny_model().model
    without._no_split_modules = []
    broken = "this machine cannot compile (no C compiler)"
    monkeypatch.setattr(compiling, "_cannot_compile", lambda device, backend: None)
    assert compiles("auto", dense, cuda) == ("inductor", "on: the learner computes on CUDA")
    assert compiles(True, dense, cpu) == (
        "inductor",
        "on: training.compile is set",
    )
    said = "on: training.compile is set (backend aot_eager)"
    assert compiles(True, dense, cpu, "aot_eager") == ("aot_eager", said)
    cases: tuple[tuple[Automatic, PreTrainedModel, torch.device, str], ...] = (
        ("auto", dense, cpu, "on a CPU it takes half a minute"),
        ("auto", tiny_mixture(), cuda, "routers of experts"),
        ("auto", without, cuda, "does not say what its blocks are"),
        (False, dense, cuda, "training.compile is set"),
    )
    for configured, model, device, why in cases:
        compiled, said = compiles(configured, model, device)
        assert compiled is None
        assert said.startswith("off: ")
        assert why in said
    monkeypatch.setattr(compiling, "_cannot_compile", lambda device, backend: broken)
    assert compiles("auto", dense, cuda) == (None, f"off: {broken}")
    with pytest.raises(UnusableModel, match=r"no C compiler.*leave training.compile out"):
        compiles(True, dense, cuda)


def test_a_machine_without_a_compiler_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as inductor
    from torch._inductor.utils import fresh_cache

    monkeypatch.setattr(inductor.cpp, "cxx", ("/nonexistent/g++",))
    with fresh_cache():
        why = compiling._cannot_compile.__wrapped__(torch.device("cpu"), "inductor")
    torch._dynamo.reset()
    assert why is not None
    assert "cannot compile" in why


def test_a_model_without_blocks_to_compile_is_refused() -> None:
    model = tiny_model().model
    model._no_split_modules = []
    with pytest.raises(UnusableModel, match=r"LlamaForCausalLM does not say .* training\.compile"):
        compile_blocks(model, "inductor")


class Widening(nn.Module):
    """A block of a model with unusual sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A residual."""
        return x + self.inner(x)


def test_graphs_of_earlier_runs_in_the_process_do_not_count_against_a_later_run() -> None:
    # Torch keeps eight graphs of a block's code, and silently runs further graphs uncompiled.
    for run in range(1, 11):
        compiles(False, tiny_model().model, torch.device("cpu"))
        graphs = CompileCounter()
        block = Widening(4 * run)
        block.compile(dynamic=True, backend=graphs)
        block(torch.ones(2, 4 * run))
        assert graphs.frame_count == 1, run


def test_a_run_counts_its_graphs_and_not_the_breaks_that_attention_makes() -> None:
    model, cpu = tiny_model().model, torch.device("cpu")
    assert model.config._attn_implementation == NAME
    compiles(False, model, cpu)
    assert compile_metrics() == {}
    compile_blocks(model, "eager")
    passes(model)
    metrics = compile_metrics()
    assert metrics["compile/graphs"] > 0
    assert metrics["compile/graph_breaks"] == metrics["compile/failed"] == 0
    compiles(False, model, cpu)
    assert compile_metrics() == {}


def test_a_run_is_warned_once_of_code_that_does_not_compile() -> None:
    def without_kernel(*_: Any) -> Any:
        raise RuntimeError("no kernel for this GPU")

    warnings = list[str]()
    report = ProcessReport(SimpleNamespace(warn=warnings.append))  # type: ignore[arg-type]
    compiles(False, tiny_model().model, torch.device("cpu"))
    block = Widening(4)
    block.compile(backend=without_kernel)
    with torch._dynamo.config.patch(suppress_errors=True):
        assert torch.equal(block(torch.ones(2, 4)), Widening.forward(block, torch.ones(2, 4)))
    assert report.metrics()["compile/failed"] == report.metrics()["compile/failed"] == 1
    assert len(warnings) == 1
    assert warnings[0].startswith("torch.compile failed for 1 of 1 pieces of the learner's code")
