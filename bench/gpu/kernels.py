"""Single operations of the learner's pass, each beside the card's measured peak.

Sizes are those of Qwen3-0.6B with 16,384 tokens a pass. Needs torch and transformers alone.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from bench.runner import BenchFailed, BenchPart, Figures
from learner.model.attention.kernels import attend
from learner.model.attention.row_layout import packed_layout
from learner.model.head.output_head import head_logprobs
from learner.persist.host_copies import HostCopies

TOKENS, HEADS, GROUPS, SIZE = 16_384, 16, 8, 128
VOCABULARY, WIDTH = 151_936, 1024
SHARED = ([256, *[224] * 8] * 8, [p for g in range(8) for p in (-1, *[9 * g] * 8)])
"""Eight prompts of 256 tokens, each with eight answers of 224: lengths, and each one's parent."""


def side(measured: Callable[..., Figures], *options: Any) -> Callable[[], Figures]:
    """Return a side that raises BenchFailed if the GPU has too little memory."""

    def guarded() -> Figures:
        try:
            return measured(*options)
        except torch.OutOfMemoryError as error:
            raise BenchFailed(f"out of memory: {str(error).partition(' (')[0]}") from error

    return guarded


def parts() -> list[BenchPart]:
    rows: dict[str, tuple[list[int], list[int] | None]] = {
        "16 × 1,024": ([1024] * 16, None),
        "4 × 4,096": ([4096] * 4, None),
        "8 × (256 shared + 8 × 224)": SHARED,
    }
    ours = {name: side(attention, lengths, parents) for name, (lengths, parents) in rows.items()}
    others = {
        f"{name}, {kernel}": side(dense_attention, length, kernel)
        for name, length in (("16 × 1,024", 1024), ("4 × 4,096", 4096))
        for kernel in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "FA3")
    }
    heads = {
        f"{rows} × {vocabulary}": side(head, rows, vocabulary)
        for rows, vocabulary in ((2048, 8192), (4096, 16384), (8192, 16384), (16384, 32768))
    }
    return [
        BenchPart("attention of the learner", ours, sides_as_rows=True),
        BenchPart("attention of torch", others, sides_as_rows=True),
        BenchPart(
            "output head, by chunk", heads | {"compiled": side(compiled_head)}, sides_as_rows=True
        ),
        BenchPart(
            "copies to the host", {"pinned pieces": side(copies), "pageable": side(pageable)}
        ),
    ]


def milliseconds(run: Callable[[], object], repeats: int = 7) -> list[float]:
    """Return how long the GPU takes, after three runs that are not counted."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


@cache
def peak() -> float:
    """Return the bfloat16 FLOPs a millisecond of a large product. Raises BenchFailed without a
    GPU."""
    if not torch.cuda.is_available():
        raise BenchFailed("no GPU: torch sees no CUDA device")
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    return float(2 * 8192**3 / statistics.median(milliseconds(lambda: x @ y)))


def both_ways(
    forward: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor], flops: float, times: float
) -> Figures:
    """Measure a forward pass, and a forward with a backward pass, which takes `times` its FLOPs."""
    peak()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    alone = milliseconds(forward)
    up = torch.randn_like(forward())
    both = milliseconds(lambda: torch.autograd.grad(forward(), inputs, up))
    return {
        "forward, ms": alone,
        "both, ms": both,
        "forward, share of peak": flops / statistics.median(alone) / peak(),
        "both, share of peak": times * flops / statistics.median(both) / peak(),
        "memory, MB": (torch.cuda.max_memory_allocated() - before) / 1e6,
    }


def heads_of(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    made = [
        torch.randn(tokens, heads, SIZE, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    return made[0], made[1], made[2]


def attention(lengths: list[int], parents: list[int] | None) -> Figures:
    peak()
    query, key, value = heads_of(sum(lengths))
    calls = packed_layout(lengths, "cuda", parents).varlen(None)
    pairs = sum(length * length / 2 for length in lengths)
    pairs += sum(n * lengths[p] for n, p in zip(lengths, parents or [], strict=False) if p >= 0)
    flops = 4 * pairs * HEADS * SIZE
    return both_ways(
        lambda: attend(query, key, value, calls, None), (query, key, value), flops, 3.5
    )


def dense_attention(length: int, kernel: str) -> Figures:
    """Measure rows of one length with one of torch's kernels. FA3 needs flash_attn_interface."""
    peak()
    flat = heads_of(TOKENS)
    query, key, value = (x.unflatten(0, (-1, length)).transpose(1, 2) for x in flat)
    name = "FLASH_ATTENTION" if kernel == "FA3" else kernel
    backend = getattr(torch.nn.attention.SDPBackend, name)

    def forward() -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )

    flops = 4 * (TOKENS // length) * length * length / 2 * HEADS * SIZE
    try:
        if kernel == "FA3":
            torch.nn.attention.activate_flash_attention_impl("FA3")
        return both_ways(forward, flat, flops, 3.5)
    except (RuntimeError, ImportError, ValueError) as error:
        raise BenchFailed(str(error).splitlines()[0][:200]) from error
    finally:
        if kernel == "FA3":
            torch.nn.attention.restore_flash_attention_impl()


def head_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    peak()
    torch.manual_seed(0)
    weight = (torch.randn(VOCABULARY, WIDTH, device="cuda") * 0.02).requires_grad_()
    hidden = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (TOKENS,), device="cuda")


def head(rows: int, vocabulary: int) -> Figures:
    hidden, weight, targets = head_inputs()
    options = (0.8, torch.bfloat16, rows, vocabulary)
    return both_ways(
        lambda: head_logprobs(hidden, weight, None, targets, *options)[0],
        (hidden, weight),
        2 * TOKENS * VOCABULARY * WIDTH,
        4,
    )


def compiled_head() -> Figures:
    """Measure what inductor makes of plain code, 2,048 rows at a time: what a fused kernel has to
    beat."""
    hidden, weight, targets = head_inputs()

    @torch.compile
    def chunk(part: torch.Tensor, head: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        logits = F.linear(part, head.to(torch.bfloat16)).float() / 0.8
        return logits.gather(1, ids[:, None]).squeeze(1) - logits.logsumexp(1)

    def forward() -> torch.Tensor:
        pairs = zip(hidden.split(2048), targets.split(2048), strict=True)
        return torch.cat([chunk(part, weight, ids) for part, ids in pairs])

    return both_ways(forward, (hidden, weight), 2 * TOKENS * VOCABULARY * WIDTH, 3)


def weights() -> list[torch.Tensor]:
    """Return 1.3 GB in 310 tensors, as a version of Qwen3-0.6B has them."""
    peak()
    return [torch.ones(2 << 20, dtype=torch.int16, device="cuda") for _ in range(310)]


def copies() -> Figures:
    tensors, copier = weights(), HostCopies(torch.device("cuda"))
    return timed_copies(tensors, lambda: copier.copied(tensors, copier.now()))


def pageable() -> Figures:
    tensors = weights()
    return timed_copies(tensors, lambda: [tensor.to("cpu", copy=True) for tensor in tensors])


def timed_copies(tensors: list[torch.Tensor], copy: Callable[[], object]) -> Figures:
    size, speeds = sum(tensor.nbytes for tensor in tensors), []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        copy()
        speeds.append(size / (time.perf_counter() - began) / 1e9)
    return {"GB/s": speeds}
