"""How a learner and a worker share one GPU."""

from typing import Any

import pytest

from services.contracts.records import WorkerRecord
from services.estimate.fit import estimate_run
from services.estimate.inputs import Model, Worker, known_workers
from services.estimate.model_shape import shape_of
from services.estimate.one_gpu import Division, division, with_share
from services.estimate.rollout_memory import ASLEEP, SHARED, shared_cache
from tests.unit.estimate.estimating import (
    GB,
    THRIFTY,
    estimate,
    gpus,
    learner,
    rl_config,
    worker,
)
from tests.unit.estimate.known import QWEN3_06B


def test_on_one_gpu_for_both_each_has_its_share() -> None:
    config = {"model": {"path": "org/m", "lora": {}}, **THRIFTY}
    found = estimate(config, learner(1, 80 * GB), worker(80 * GB, first=0))
    assert found.learner.memory == 48 * GB
    assert found.rollout is not None
    assert found.rollout.memory == 32 * GB


SHORT: dict[str, Any] = {
    "sampling": {"max_tokens": 1024},
    "rollout": {"vllm": {"max_model_len": 1280}},
}


def divided(config: dict[str, Any], memory: int, *workers: Worker) -> Division | None:
    """How a 0.6B model and its vLLM share a GPU."""
    shape = shape_of(QWEN3_06B)
    assert shape is not None
    return division(rl_config(SHORT | config), Model(shape, half=True), learner(1, memory), workers)


def test_vllm_gets_what_the_learner_leaves_where_its_usual_share_is_too_much() -> None:
    one = worker(24 * GB, first=0)
    found = divided({}, 24 * GB, one)
    assert found is not None
    assert found.share is not None
    assert found.share < SHARED
    assert f"gpu_memory_utilization is {found.share:g}: with 0.4" in found.words
    # Both fit, the learner also if it needs a tenth more; with 0.01 more for vLLM it would not.
    shape = shape_of(QWEN3_06B)
    assert shape is not None
    for share, fits in ((found.share, True), (found.share + 0.01, False)):
        config = with_share(rl_config(SHORT), share)
        need = estimate_run(config, Model(shape, half=True), learner(1, 24 * GB), [one])
        assert need.rollout is not None
        assert need.rollout.fits
        assert need.learner.memory is not None
        assert (need.learner.needed <= 0.9 * need.learner.memory) == fits


def test_where_each_fits_alone_on_one_gpu_and_both_do_not_they_take_turns() -> None:
    one = worker(20 * GB, first=0)
    small = {"training": {"tokens_per_microbatch": 4096}}
    found = divided(small, 20 * GB, one)
    assert found is not None
    assert found.sleeps
    assert found.share is not None
    needs = "the learner needs 15 GB and a tenth to spare, vLLM 4.4 GB, of 20 GB"
    assert f"take turns on this GPU, because they do not fit on it side by side ({needs})" in (
        found.words
    )
    # Each with the memory that the other leaves: CUDA's own in the learner, 2 GiB in vLLM.
    assert found.share == 0.89
    shape = shape_of(QWEN3_06B)
    assert shape is not None
    config = with_share(rl_config(SHORT | small), found.share, found.sleeps)
    needed = estimate_run(config, Model(shape, half=True), learner(1, 20 * GB), [one])
    assert needed.fits
    assert needed.rollout is not None
    assert needed.rollout.memory == int(0.89 * 20 * GB)
    assert needed.learner.memory == pytest.approx(20 * GB - 2 * 2**30, abs=1)
    assert needed.learner.memory is not None
    assert needed.learner.needed <= 0.9 * needed.learner.memory
    # Weights, moments and the newest version, of 4, 8 and 2 bytes, and vLLM's weights of 2: of
    # 0.6 billion weights, with up to twice their size in pinned memory.
    assert needed.host is not None
    assert 14 * 0.596e9 < needed.host.parts["moved"] < 28 * 0.596e9
    assert needed.host.parts["asleep"] == pytest.approx(needed.host.parts["moved"] / 7, rel=0.01)
    both = needed.host.parts["moved"] + needed.host.parts["asleep"]
    assert f"which needs {both / GB:.0f} GB for both" in found.words
    # Another worker's GPU leaves the learner all of its own.
    apart = estimate_run(
        config, Model(shape, half=True), learner(1, 20 * GB), [worker(20 * GB, first=1)]
    )
    assert apart.learner.memory == 20 * GB


def test_where_learner_or_vllm_does_not_fit_on_one_gpu_even_alone_the_figures_say_so() -> None:
    found = divided({}, 16 * GB, worker(16 * GB, first=0))
    assert found is not None
    assert (found.share, found.sleeps) == (None, False)
    assert "do not fit on it together" in found.words
    assert ", of 16 GB; give the worker a GPU of its own" in found.words


def test_a_gpu_is_divided_as_usual_if_both_fit_or_the_run_sets_the_shares() -> None:
    one = worker(24 * GB, first=0)
    assert divided({}, 80 * GB, worker(80 * GB, first=0)) is None
    vllm = SHORT["rollout"]["vllm"] | {"gpu_memory_utilization": 0.5}
    assert divided({"rollout": {"vllm": vllm}}, 24 * GB, one) is None
    # Each has its own, or several workers share one.
    assert divided({}, 24 * GB, worker(24 * GB, first=1)) is None
    assert divided({}, 24 * GB, one, one) is None


def test_the_share_that_a_worker_has_been_given_counts() -> None:
    fields = {"pool": "default", "host": "h", "pid": 1, "state": "idle"}
    record = WorkerRecord(id="w", **fields, devices=gpus(1, 80 * GB), gpu_share=0.6)
    old = WorkerRecord(id="old", **fields, devices=gpus(1, 80 * GB))
    one, usual = known_workers([record, old])
    config = {"model": {"path": "org/m", "lora": {}}, **THRIFTY}
    half = Worker(one.gpus, 0.2)
    for workers, taken, sampled in (
        ([one], 48 * GB, 48 * GB),
        ([usual], 32 * GB, 32 * GB),
        # Workers on one GPU use their shares at the same time.
        ([half, half], 32 * GB, 16 * GB),
        ([half, usual], 32 * GB, 16 * GB),
    ):
        found = estimate(config, learner(1, 80 * GB), *workers)
        assert found.rollout is not None
        assert (found.learner.memory, found.rollout.memory) == (80 * GB - taken, sampled)

    words = "with 0.9, the worker's HEADRACE_VLLM_GPU_MEMORY_UTILIZATION, the learner would have"
    # With the usual share both fit.
    assert divided({}, 80 * GB, usual) is None
    large = divided({}, 80 * GB, Worker(one.gpus, 0.9))
    assert large is not None
    assert words in large.words


def cache(
    share: float, config: dict[str, Any] | None = None, first: int = 0, sleeps: bool = False
) -> int | None:
    """Bytes of the cache that a vLLM of 0.6B gets on the learner's 80 GB, or on the next GPU."""
    shape = shape_of(QWEN3_06B)
    assert shape is not None
    parsed = with_share(rl_config(SHORT | (config or {})), share, sleeps)
    model, one = Model(shape, half=True), worker(80 * GB, first=first)
    return shared_cache(parsed, model, learner(1, 80 * GB), one)


def test_a_vllm_on_the_learners_gpu_gets_the_size_of_its_cache() -> None:
    shape = shape_of(QWEN3_06B)
    assert shape is not None
    weights, logits = 2 * shape.parameters, 1024 * 151_936 * 8
    # The embedding is patched as a whole tensor, and its positions take as much again.
    patch = 2 * 2 * 151_936 * 1024
    assert cache(0.4) == 32 * GB - weights - ASLEEP - logits - patch
    whole = {"rollout": {"weights": "full", "vllm": {"max_model_len": 1280}}}
    assert cache(0.4, whole) == 32 * GB - weights - ASLEEP - logits
    assert (
        cache(0.4, {"model": {"path": "org/m", "lora": {}}}) == 32 * GB - weights - ASLEEP - logits
    )


def test_a_vllm_that_can_measure_chooses_its_cache_itself() -> None:
    assert cache(0.9, first=1) is None
    assert cache(0.9, sleeps=True) is None
    # Too little for one sequence: vLLM says what it lacks.
    assert cache(0.05) is None
