"""Attention in parts equals attention over the whole: outputs and gradients of random forests."""

import pytest
import torch

from learner.model.attention.kernels import attend
from learner.model.attention.row_layout import ROOT, PackedLayout, packed_layout
from tests.unit.learner import varlen_kernel


def sees(layout: PackedLayout, window: int | None) -> torch.Tensor:
    """[T, T] bool: the keys that each query attends to, by the definition."""
    starts, positions = layout.starts, layout.positions
    segment = torch.arange(len(layout.lengths)).repeat_interleave(torch.tensor(layout.lengths))
    position = torch.arange(starts[-1]) - torch.tensor([starts[s] - positions[s] for s in segment])
    above = torch.eye(len(layout.lengths), dtype=torch.bool)
    for child, parent in enumerate(layout.parents):
        if parent != ROOT:
            above[child] |= above[parent]
    apart = position[:, None] - position[None]
    return above[segment][:, segment] & (apart >= 0) & (apart < (window or len(apart)))


def forest(seed: int) -> PackedLayout:
    """A few trees of up to four generations."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    lengths: list[int] = []
    parents: list[int] = []

    def grow(parent: int, depth: int) -> None:
        me = len(lengths)
        lengths.append(integer(1, 40))
        parents.append(parent)
        for _ in range(integer(0, 4) if depth < 3 else 0):
            grow(me, depth + 1)

    for _ in range(3):
        grow(ROOT, 0)
    return packed_layout(lengths, parents=parents)


@torch.no_grad()
def apart(found: torch.Tensor, right: torch.Tensor, terms: torch.Tensor) -> float:
    # A token that sees only itself has a query gradient of 0, up to rounding: the terms cancel.
    size = right.norm() if right.norm() > 0 else terms.norm()
    return float((found.double() - right).norm() / size.clamp(min=1))


@pytest.mark.parametrize("varlen", [False, True], ids=["blocks", "varlen"])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_forest_add_up_to_its_attention(
    monkeypatch: pytest.MonkeyPatch, seed: int, heads: tuple[int, int], varlen: bool
) -> None:
    layout = forest(seed)
    torch.manual_seed(seed)
    h, g = heads
    tokens = layout.starts[-1]
    # The same numbers in both types.
    inputs = [torch.randn(tokens, n, 8).double() for n in (h, g, g)]
    upstream = torch.randn(tokens, h, 8, dtype=torch.float64)
    if varlen:
        varlen_kernel.stand_in(monkeypatch)
    for window in (None, 1, 2, 7, 16, 33, 1000):
        leaves = [x.clone().requires_grad_() for x in inputs]
        q, k, v = (x.repeat_interleave(h // x.shape[1], 1).transpose(0, 1) for x in leaves)
        scores = (q @ k.transpose(1, 2) * 0.3).masked_fill(~sees(layout, window), -torch.inf)
        right = (scores.softmax(-1) @ v).transpose(0, 1)
        right_grads = torch.autograd.grad((right * upstream).sum(), leaves)
        # The stand-in's own rounding is not the kernel's.
        for kind, limit in ((torch.float64, 1e-12), (torch.float32, 1e-6))[: 1 if varlen else 2]:
            leaves = [x.to(kind).requires_grad_() for x in inputs]
            calls = layout.varlen(window) if varlen else layout.blocks(window)
            q, k, v = leaves
            out = attend(q, k, v, calls, 0.3)
            grads = torch.autograd.grad((out * upstream.to(kind)).sum(), leaves)
            assert apart(out, right, right) < limit
            for grad, other in zip(grads, right_grads, strict=True):
                assert apart(grad, other, upstream) < limit


def test_values_may_be_of_another_size_than_keys() -> None:
    layout = packed_layout([5, 3])
    torch.manual_seed(0)
    q, k = (torch.randn(8, 2, 6, dtype=torch.float64) for _ in range(2))
    v = torch.randn(8, 2, 4, dtype=torch.float64)
    scores = (q.transpose(0, 1) @ k.permute(1, 2, 0) / 6**0.5).masked_fill(
        ~sees(layout, None), -torch.inf
    )
    right = (scores.softmax(-1) @ v.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(attend(q, k, v, layout.blocks(None)), right)


def test_no_call_has_more_pairs_than_chunks_of_the_window() -> None:
    window = 64
    layout = packed_layout([5000, 37, 1200, 1200, 300], parents=[ROOT, ROOT, ROOT, 2, 2])
    pairs = sum(
        block.queries.shape[0] * block.queries.shape[1] * block.keys.shape[1]
        for block in layout.blocks(window)
    )
    assert pairs <= layout.starts[-1] * 2 * window
    # And it sees all of them except a triangle of each chunk's halves.
    assert pairs >= int(sees(layout, window).sum())


def test_padding_with_scores_far_above_a_sequences_own_leaves_gradients_finite() -> None:
    layout = packed_layout([30, 20])
    torch.manual_seed(0)
    q, k, v = (torch.randn(50, 1, 8) for _ in range(3))
    # The first token of the second sequence, which pads its row, sees only its own low score.
    q[30], k[30], k[31:] = 40.0, -40.0, 40.0
    leaves = [x.requires_grad_() for x in (q, k, v)]
    attend(q, k, v, layout.blocks(None)).sum().backward()
    assert all(bool(x.grad.isfinite().all()) for x in leaves if x.grad is not None)
