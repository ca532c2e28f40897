"""The estimate knows which models fit which GPUs, and explains a misfit."""

from typing import Any

import pytest

from services.contracts.config import parse_config
from services.contracts.devices import LearnerDevices, LearnerHost
from services.estimate.answer import Estimate
from services.estimate.fit import cannot_fit, estimate_run
from services.estimate.inputs import Model, Worker
from services.estimate.model_shape import shape_of
from tests.unit.estimate.estimating import (
    GB,
    L4,
    THRIFTY,
    estimate,
    learner,
    rl_config,
    worker,
)
from tests.unit.estimate.known import LLAMA_8B, QWEN3_8B, QWEN3_30B_A3B

WASTEFUL = {"training": {"activation_checkpointing": False}}


def refused(found: Estimate) -> bool:
    return any(cannot_fit(one) for one in (found.learner, found.rollout, found.host) if one)


def test_eight_billion_on_eight_gpus_of_80_gb_leaves_a_fifth() -> None:
    found = estimate(THRIFTY, learner(8, 80 * GB), worker(80 * GB))
    assert found.fits
    assert found.advice == []
    assert found.learner.how.startswith("fsdp on 8 ranks, bfloat16, 16,384 tokens a pass")
    assert found.learner.needed < 0.8 * 80 * GB
    assert sum(found.learner.parts.values()) == found.learner.needed
    # 8.19 billion weights of 4 bytes, gradients of 4, moments of 8, on 8 ranks.
    assert found.learner.parts["weights"] == pytest.approx(8.19 * GB * 4 / 8, rel=0.01)
    assert found.learner.parts["optimizer"] == pytest.approx(8.19 * GB * 8 / 8, rel=0.01)
    assert found.rollout is not None
    # 36 layers of 2 · 8 heads of 128 numbers of 2 bytes: 147,456 bytes a token.
    assert found.rollout.parts["weights"] == pytest.approx(16.4 * GB, rel=0.01)
    tokens = found.rollout.parts["cache"] / 147_456
    assert f"a cache of {int(tokens):,} tokens" in found.rollout.how
    # Three checkpoints of 12 bytes a weight, three versions of 2.
    assert found.disk.needed == pytest.approx(42 * 8.19 * GB, rel=0.01)
    assert found.disk.parts["versions"] == pytest.approx(6 * 8.19 * GB, rel=0.01)


def test_quantised_weights_leave_more_of_a_gpu_for_the_cache() -> None:
    quantised = {"rollout": {"vllm": {"quantization": "fp8_per_channel"}}}
    found = estimate(THRIFTY | quantised, learner(8, 80 * GB), worker(80 * GB))
    assert found.rollout is not None
    # 6.95 billion weights of 1 byte, and embedding and head: 2 · 151,936 · 4,096 of 2.
    assert found.rollout.parts["weights"] == pytest.approx(9.44 * GB, rel=0.01)


def test_what_does_not_fit_names_changes_that_need_less() -> None:
    found = estimate(WASTEFUL, learner(8, 80 * GB), worker(80 * GB))
    assert found.fits is False
    assert refused(found)
    assert found.advice == [
        'set training.activation_checkpointing to "auto"',
        "lower training.tokens_per_microbatch (now 16384)",
        "raise training.context_parallel, so that ranks share a long sequence",
        'set training.offload to ["optimizer"]',
        "train on more GPUs, one rank each",
        "train adapters (model.lora)",
        "take a smaller model, or larger GPUs",
    ]
    assert estimate({}, learner(8, 80 * GB), worker(80 * GB)).fits


def test_activations_are_recomputed_only_if_they_do_not_fit() -> None:
    small, large = learner(8, 80 * GB), learner(8, 400 * GB)
    by_itself, forced = estimate({}, small), estimate(THRIFTY, small)
    assert by_itself.learner == forced.learner
    assert by_itself.learner.how.endswith("activations computed again, blocks compiled")
    kept, never = estimate({}, large), estimate(WASTEFUL, large)
    assert kept.learner == never.learner
    # If the activations nearly fill the GPU, an estimate a tenth too low would hide a misfit.
    sharded = {"training": {"parallel": "fsdp"}}
    needed = estimate({"training": {"parallel": "fsdp"} | WASTEFUL["training"]}, large).learner
    for memory, again in ((needed.needed * 1.05, True), (needed.needed * 1.2, False)):
        found = estimate(sharded, learner(8, int(memory))).learner
        assert ("computed again" in found.how) == again


def test_long_answers_train_at_8b_the_longest_where_ranks_share_them() -> None:
    model = QWEN3_8B | {"max_position_embeddings": 131_072}
    long = {"sampling": {"max_tokens": 65_536 - 256}}
    found = estimate(long, learner(8, 80 * GB), model=model).learner
    assert found.fits
    assert found.how.startswith("fsdp on 8 ranks, bfloat16, 65,536 tokens a pass, activations")
    long = {"sampling": {"max_tokens": 131_072 - 256}}
    alone = estimate(long, learner(8, 80 * GB), model=model)
    assert alone.learner.fits is False
    assert any("training.context_parallel" in said for said in alone.advice)
    size = 2
    changed = long | {"training": {"context_parallel": size}}
    shared = estimate(changed, learner(8, 80 * GB), model=model)
    assert shared.learner.fits
    assert f"{131_072 // size:,} tokens a pass" in shared.learner.how


def test_a_copy_costs_its_weights_unless_it_is_on_the_host() -> None:
    kl: dict[str, Any] = {"algorithm": {"kl": {"type": "k3", "beta": 0.1}}}
    plain, copied, offloaded = (
        estimate(config, learner(8, 80 * GB)).learner.needed
        for config in (
            THRIFTY,
            THRIFTY | kl,
            {"training": {"activation_checkpointing": True, "offload": ["reference"]}} | kl,
        )
    )
    assert copied - plain == pytest.approx(2 * 8.19 * GB / 8, rel=0.01)
    assert offloaded == plain
    kl["algorithm"]["kl"]["reference"] = {"type": "ema", "rate": 0.1}
    moving = estimate(THRIFTY | kl, learner(8, 80 * GB)).learner.needed
    assert moving - plain == pytest.approx(4 * 8.19 * GB / 8, rel=0.01)


def test_a_rank_keeps_what_it_has_published_in_bfloat16() -> None:
    found = estimate(THRIFTY, learner(8, 80 * GB)).learner
    assert found.parts["published"] == pytest.approx(2 * 8.19 * GB / 8, rel=0.01)
    for config in (
        {"rollout": {"weights": "full"}},
        {"model": {"path": "org/m", "dtype": "float32"}},
        {"model": {"path": "org/m", "lora": {}}},
    ):
        assert "published" not in estimate(THRIFTY | config, learner(8, 80 * GB)).learner.parts


def test_adapters_leave_the_model_in_bfloat16_on_one_gpu() -> None:
    config = {"model": {"path": "org/m", "lora": {}}, **THRIFTY}
    found = estimate(config, learner(1, 80 * GB), worker(80 * GB), model=LLAMA_8B)
    assert found.fits
    # Rank 16, of 7 matrices in each of 32 layers: 41.9 million weights.
    assert found.learner.parts["optimizer"] == 8 * 41_943_040
    assert found.learner.parts["weights"] == pytest.approx(2 * 8.03 * GB, rel=0.02)


def test_a_worker_without_memory_for_one_sequence_suggests_a_shorter_one() -> None:
    # 16.4 GB of weights of 21.6 that vLLM takes: 40,960 tokens take 6.
    small = worker(24 * GB, L4)
    config = THRIFTY | {"sampling": {"max_tokens": 1024}}
    found = estimate(config, learner(8, 80 * GB), small)
    assert found.rollout is not None
    assert found.rollout.fits is False
    assert found.advice[0].startswith("set rollout.vllm.max_model_len to what a prompt")
    assert "e.g. 1280" in found.advice[0]
    shorter = {"rollout": {"vllm": {"max_model_len": 1280}}}
    assert estimate(config | shorter, learner(8, 80 * GB), small).fits
    tiny = estimate(config | shorter, learner(8, 80 * GB), worker(16 * GB, L4))
    assert tiny.advice[0].startswith("raise rollout.vllm.tensor_parallel_size (now 1)")


def test_unknown_values_are_named_without_a_refusal() -> None:
    found = estimate({}, None)
    assert (found.fits, found.learner.memory, found.learner.fits) == (None, None, None)
    assert not refused(found)
    assert any(note.startswith("no learner of this pool") for note in found.notes)
    assert any(note.startswith("no rollout worker of this pool") for note in found.notes)


def test_a_run_on_cpus_of_unknown_memory_is_accepted() -> None:
    found = estimate({}, LearnerDevices(ranks=2, gpus=[]), Worker(()))
    assert found.fits is None
    assert not refused(found)
    assert found.learner.how.startswith("ddp on 2 ranks on CPUs, float32")
    assert sum("CPUs" in note for note in found.notes) == 2


def test_the_unknown_side_of_a_pool_is_assumed_to_have_what_the_other_side_has() -> None:
    host = LearnerHost(free=90 * GB, ranks=1, name="box", total=99 * GB)
    for learner_devices, workers in (
        (LearnerDevices(ranks=1, gpus=[], host=host), ()),
        (None, (Worker((), host="box", free=90 * GB, total=99 * GB),)),
    ):
        found = estimate({}, learner_devices, *workers)
        assert found.rollout is not None
        assert (found.learner.on_cpu, found.rollout.on_cpu, found.host) == (True, True, None)
        assert "runtime" not in found.learner.parts.keys() | found.rollout.parts.keys()
        assert sum("CPUs are assumed" in note for note in found.notes) == 1
        assert not any("GPU" in note for note in found.notes)


def test_a_model_that_no_memory_of_the_host_holds_is_refused_on_cpus() -> None:
    def on(total: int, free: int) -> Estimate:
        host = LearnerHost(free=free, ranks=2, name="box", total=total)
        return estimate(
            {},
            LearnerDevices(ranks=2, gpus=[], host=host),
            Worker((), host="box", free=free, total=total),
            Worker((), host="elsewhere", free=free, total=total),
        )

    found = on(64 * GB, 60 * GB)
    assert found.fits is False
    assert refused(found)
    assert found.learner.on_cpu
    assert found.learner.gpu is None
    # Weights and gradients of 4 bytes, moments of 8, on each of two ranks, and the worker's part.
    assert found.learner.parts["optimizer"] == pytest.approx(2 * 8 * 8.19 * GB, rel=0.01)
    assert found.rollout is not None
    assert found.rollout.parts["weights"] == pytest.approx(2 * 8.19 * GB, rel=0.01)
    # Both have the same memory, which the learner shares with the worker on its host.
    assert found.learner.memory == found.rollout.memory == 60 * GB
    assert found.learner.parts["workers"] == found.rollout.needed
    assert sum(found.learner.parts.values()) == found.learner.needed
    assert "train adapters (model.lora)" in found.advice
    assert not any("GPU" in said or "CUDA" in said for said in (*found.advice, *found.notes))

    # With memory that other work has for now, it is not refused.
    later = on(2000 * GB, 60 * GB)
    assert (later.fits, refused(later)) == (False, False)
    assert on(2000 * GB, 1900 * GB).fits


def test_memory_that_learner_and_workers_have_now_is_free_for_the_next_run() -> None:
    def memory(used: int, worker_used: int) -> set[int | None]:
        free, total = 60 * GB - used - worker_used, 64 * GB
        host = LearnerHost(free=free, used=used, ranks=1, name="box", total=total)
        found = estimate(
            {},
            LearnerDevices(ranks=1, gpus=[], host=host),
            Worker((), host="box", free=free, used=worker_used, total=total),
        )
        assert found.rollout is not None
        return {found.learner.memory, found.rollout.memory}

    # A learner restarted while a vLLM holds 20 GB, and a learner that holds a model.
    assert memory(0, 0) == memory(0, 20 * GB) == memory(30 * GB, 20 * GB) == {60 * GB}


def test_what_a_run_keeps_on_disk_is_compared_with_what_is_free() -> None:
    def on(free: int, **training: int) -> Estimate:
        shape = shape_of(QWEN3_8B)
        assert shape is not None
        sections = {"training": THRIFTY["training"] | training, "evaluation": {"dataset": "d"}}
        config = rl_config(sections)
        model = Model(shape, half=True)
        return estimate_run(config, model, learner(8, 80 * GB), [worker(80 * GB)], free)

    # Three checkpoints of 98 GB and three versions of 16.
    assert on(400 * GB).disk.fits
    full = on(300 * GB)
    assert (full.fits, full.disk.fits) == (True, False)
    assert full.advice[0].startswith("make room on the data volume")
    # One step makes one checkpoint, and an evaluation none.
    assert on(300 * GB, max_steps=1).disk.fits
    assert on(0, max_steps=0).disk.parts == {}


def test_what_is_offloaded_needs_room_on_the_host_rounded_up_as_pinned_memory_is() -> None:
    eight, offload = learner(8, 80 * GB), THRIFTY["training"] | {"offload": ["optimizer"]}
    plain, moved = (
        estimate({"training": training}, eight).host for training in (THRIFTY["training"], offload)
    )
    assert plain is not None
    assert moved is not None
    assert (plain.memory, plain.fits) == (None, None)
    # A checkpoint of 12 bytes a weight, and the newest version.
    assert plain.parts["checkpoint"] == pytest.approx(12 * 8.19 * GB, rel=0.01)
    assert plain.parts["newest"] == pytest.approx(2 * 8.19 * GB, rel=0.01)
    # Two moments. In Qwen3-8B 151,936 · 4,096 and 12,288 · 4,096 weights are no powers of two:
    # 2 · 2^30 and 36 · 3 · 2^26 in place of 1.24 and 5.44 billion; 1.51 billion others are.
    weights = 2 * 2**30 + 36 * (3 * 2**26 + 2 * 2**24 + 2 * 2**22)
    assert moved.parts["moved"] == pytest.approx(8 * weights, rel=0.01)
    assert {**moved.parts, "moved": 0} == {**plain.parts, "moved": 0}


def test_a_run_larger_than_its_learners_host_is_refused_with_the_keys_to_change() -> None:
    def on(free: int, ranks: int, **training: Any) -> Estimate:
        eight = learner(8, 80 * GB)
        eight.host = LearnerHost(free=free, ranks=ranks)
        return estimate({"training": THRIFTY["training"] | training}, eight)

    needed = 14 * 8.19 * GB
    assert on(int(1.2 * needed), 8).fits is None, "no worker is known"
    small = on(int(0.8 * needed), 8)
    assert small.fits is False
    assert refused(small)
    assert small.advice[0].startswith("train adapters (model.lora)")
    assert small.advice[-1].startswith("the learner's host has 92 GB free for the run, and")
    # On the first of two hosts is half of the slices, and the whole version.
    assert not refused(on(int(0.8 * needed), 4))
    offloaded = on(int(1.2 * needed), 8, offload=["optimizer"])
    assert refused(offloaded)
    assert offloaded.advice[0].startswith("name less in training.offload")


def test_a_critic_is_on_the_host_without_its_gradients() -> None:
    def moved(*names: str) -> int:
        training = {"activation_checkpointing": True, "parallel": "fsdp", "offload": list(names)}
        config = {"training": training, "algorithm": {"critic": {}, "advantage": {"type": "gae"}}}
        host = estimate(config, learner(8, 80 * GB)).host
        assert host is not None
        return host.parts.get("moved", 0)

    # Weights of 4 bytes and moments of 8, of policy and critic.
    assert moved("critic") == pytest.approx(12 / 8 * moved("optimizer") / 2, rel=0.02)
    assert moved("critic", "optimizer") == pytest.approx(20 / 16 * moved("optimizer"), rel=0.02)


def test_what_exceeds_a_gpu_by_less_than_the_error_is_not_refused() -> None:
    # By itself it would not be sharded on a GPU of this size.
    sharded = {"training": {"activation_checkpointing": True, "parallel": "fsdp"}}
    needed = estimate(sharded, learner(8, 400 * GB)).learner.needed
    tight = estimate(sharded, learner(8, int(needed / 1.05)))
    assert tight.fits is False
    assert not refused(tight)
    fits = estimate(sharded, learner(8, int(needed * 1.05)))
    assert any("is tight" in note for note in fits.notes)


def test_pairs_need_room_for_a_reference_and_for_both_answers() -> None:
    shape = shape_of(QWEN3_8B)
    assert shape is not None
    training: dict[str, Any] = {"tokens_per_microbatch": 1024}
    base: dict[str, Any] = {
        "type": "sft",
        "model": {"path": "org/m"},
        "data": {"dataset": "d", "max_seq_len": 16_384},
        "optimizer": {"type": "adamw"},
        "training": training,
    }
    pairs: dict[str, Any] = {"objective": {"type": "dpo"}}
    offload = {"training": training | {"offload": ["reference"]}}
    parts, said = [], []
    for changes in ({}, pairs, pairs | offload):
        need = estimate_run(
            parse_config(base | changes), Model(shape, half=True), learner(8, 80 * GB), []
        ).learner
        assert need is not None
        parts.append(need.parts.get("copies", 0))
        said.append(need.how)
    # A slice of the bfloat16 weights on each of eight ranks.
    assert parts == [0, pytest.approx(2 * 8.19e9 / 8, rel=0.05), 0]
    assert "16,384 tokens a pass" in said[0]
    assert "32,768 tokens a pass" in said[1]


def test_a_teacher_takes_room_for_its_weights() -> None:
    shape, large = shape_of(QWEN3_8B), shape_of(QWEN3_30B_A3B)
    assert shape is not None
    assert large is not None
    algorithm = {"advantage": {"type": "reverse_kl"}, "teacher": {"path": "t"}}
    base: dict[str, Any] = {"model": {"path": "m"}, "data": {"dataset": "d"}}
    base["rewards"] = [{"verifier": "math"}]
    found = [
        estimate_run(
            parse_config(base | changes), Model(shape, True, None, large), learner(8, 80 * GB), []
        )
        for changes in (
            {},
            {"algorithm": algorithm},
            {"algorithm": algorithm, "training": {"offload": ["teacher"]}},
        )
    ]
    copies = [one.learner.parts.get("copies", 0) for one in found]
    assert copies == [0, pytest.approx(2 * large.parameters / 8, rel=0.05), 0]


def test_groups_that_are_too_large_for_redis_take_disk_space() -> None:
    def of(tokens: int, every: int = 10, **algorithm: Any) -> Estimate:
        many = {"samples_per_prompt": 16, "prompts_per_step": 32, **algorithm}
        config = {
            "sampling": {"max_tokens": tokens},
            "training": {"checkpoint_every": every, "max_steps": 1000},
            "algorithm": many,
        }
        model = QWEN3_30B_A3B if algorithm else QWEN3_8B
        return estimate(config, learner(8, 80 * GB), worker(80 * GB), model=model)

    # Tokens of 8 bytes: at 16k a group has 2.1 MB, at 64k 8.4 MB.
    short, long = of(16 << 10), of(64 << 10)
    assert long.disk.needed - short.disk.needed == 2 * 10 * 32 * 16 * (64 << 10) * 8
    assert of(64 << 10, every=2).disk.needed - short.disk.needed == 2 * 2 * 32 * 16 * (64 << 10) * 8
    assert not any("too large for Redis" in note for note in short.notes)
    assert any("too large for Redis" in note for note in long.notes)

    # A sampling mask takes up to 90 bytes a token.
    config = {
        "sampling": {"max_tokens": 16 << 10, "top_k": 50},
        "training": {"checkpoint_every": 10},
        "algorithm": {"samples_per_prompt": 16, "prompts_per_step": 32},
    }
    masked = estimate(config, learner(8, 80 * GB), worker(80 * GB), model=QWEN3_8B)
    assert masked.disk.needed - short.disk.needed == 2 * 10 * 32 * 16 * (16 << 10) * 98

    # Expert routing of 48 layers and 8 experts makes groups of 206 MB.
    routed = of(32 << 10, router={"replay": True}).disk.needed
    plain = of(16 << 10, router={"replay": False}).disk.needed
    assert routed - plain == pytest.approx(2 * 10 * 32 * 206e6, rel=0.01)


def test_a_run_that_keeps_much_of_what_it_trains_says_how_much() -> None:
    long = {"sampling": {"max_tokens": 4096}, "training": {"max_steps": 1000}}
    (note,) = [n for n in estimate(THRIFTY | long, None).notes if "rollout.keep_share" in n]
    # 524,288 tokens of 10 bytes a step.
    assert note.startswith("trained answers are kept in up to 5.2 GB of the data volume, 5.2 MB a")
    none = long | {"rollout": {"keep_share": 0}}
    assert not [n for n in estimate(THRIFTY | none, None).notes if "rollout.keep_share" in n]
