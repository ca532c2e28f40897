"""The learner's benchmark: its batch and its cuts by hand, and both sides in a tiny size."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.learner import one_pass
from bench.learner.one_pass import make_batch, make_model, measure, padded_cuts
from bench.learner.run import figures, one_side, parsed, part
from bench.runner import BenchFailed, BenchResults

ROOT = Path(__file__).parents[3]
TINY = [
    *("--hidden=32", "--intermediate=48", "--layers=2", "--heads=4", "--kv-heads=2"),
    *("--vocabulary=96", "--sequences=6", "--prompt=3", "--longest=40", "--tokens=60"),
    "--repeats=1",
]


def test_mixed_answers_are_a_quarter_of_the_longest() -> None:
    mixed = make_batch("mixed", 4000, 7, 1000, 50)
    answers = [length - 7 for length in mixed.lengths]
    assert 220 < sum(answers) / 4000 < 280
    assert (min(answers) >= 1, max(answers)) == (True, 1000)
    assert mixed.trained == sum(answers)
    assert set(make_batch("equal", 3, 7, 1000, 50).lengths) == {1007}


def test_answers_to_one_prompt_share_it_and_nothing_else() -> None:
    batch = make_batch("equal", 6, 8, 5, 1000, answers=3)
    first, *others = batch.sequences
    assert [torch.equal(first[:8], other[:8]) for other in others] == [True, True, *[False] * 3]
    assert not torch.equal(first[8:], others[0][8:])


def test_both_sides_have_the_same_batch() -> None:
    one, other = (make_batch("mixed", 5, 2, 30, 50) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.sequences, other.sequences, strict=True))
    assert torch.equal(one.advantages, other.advantages)


def test_padding_counts_in_what_plain_transformers_take_at_once() -> None:
    # 3 x 10 = 30 fit; with the 12 it would be 4 x 12 = 48. The 40 has a pass of its own.
    assert padded_cuts([10, 2, 3, 12, 5, 40, 1], 30) == [[0, 1, 2], [3, 4], [5], [6]]


def test_a_side_without_memory_says_so_and_the_other_keeps_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(request: dict[str, Any]) -> dict[str, Any]:
        if request["side"] == "plain":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.27 GiB (GPU 0)")
        return {
            "tokens": 10,
            "seconds": [2.0],
            "median_cpu_seconds": 1.0,
            "mfu": 0.4,
        } | dict.fromkeys(("peak_bytes", "passes", "computed_tokens", "logprob_mean"), 1.0)

    real = subprocess.run

    def ran(arguments: Any, **options: Any) -> Any:
        if "input" not in options:
            return real(arguments, **options)
        answer = one_pass.answer(json.loads(options["input"]))
        return SimpleNamespace(returncode=0, stdout=json.dumps(answer))

    monkeypatch.setattr(one_pass, "measure", measured)
    monkeypatch.setattr(subprocess, "run", ran)
    results = BenchResults("learner")
    results.measure(part("step", parsed([])))
    assert results.value("full step", "headrace", "tokens/s") == 5
    assert results.failed == {
        "full step, plain": "out of memory: CUDA out of memory. Tried to allocate 9.27 GiB"
    }


def test_on_a_gpu_the_default_size_is_a_model_that_its_user_trains() -> None:
    by_memory = {size: parsed([], size * 10**9) for size in (24, 48, 80, 141)}
    assert {(o["hidden"], o["layers"], o["dtype"]) for o in by_memory.values()} == {
        (1024, 28, "bfloat16")
    }
    # Plain transformers need 5.5 MB for a token of a pass, and 9.5 GB besides.
    tokens = {size: options["tokens"] for size, options in by_memory.items()}
    assert tokens == {24: 1024, 48: 4096, 80: 8192, 141: 8192}
    assert by_memory[24]["prompt"] + by_memory[24]["longest"] == 1024
    assert parsed(["--model", "qwen3-8b"], 141 * 10**9)["hidden"] == 4096
    assert (parsed([])["hidden"], parsed([])["dtype"]) == (384, "float32")


def test_the_learner_alone_has_no_ratio_and_two_sides_must_agree() -> None:
    alone = part("step", parsed(["--against=none"]))
    assert (list(alone.sides), alone.ratio) == (["headrace"], None)
    both = part("step", parsed(["--dtype=bfloat16"]))
    assert both.ratio == ("headrace", "plain")
    assert both.agree == {"mean log-probability": 3e-2, "gradient's norm": 3e-2}


def test_a_process_that_fails_is_a_failed_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BenchFailed, match="exit code 1; its error is above"):
        one_side("headrace", "step", {})


def test_a_known_model_has_heads_of_its_own_width() -> None:
    options = parsed(["--model=qwen3-0.6b", "--longest=8"])
    assert (options["hidden"], options["heads"], options["head_dim"]) == (1024, 16, 128)
    with torch.device("meta"):
        model = make_model(options, torch.device("meta"))
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (2048, 1024)
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(596e6, rel=1e-3)


def test_what_is_measured_is_made_ready_as_a_run_makes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ready: list[tuple[bool, str]] = []
    compiled = ("inductor", "on: training.compile is set")
    monkeypatch.setattr(one_pass, "compiles", lambda *_: compiled)
    monkeypatch.setattr(one_pass, "make_trainable", lambda _, *how: ready.append(how))
    options = parsed([*TINY, "--checkpointing", "--compile=on"])
    one_pass.headrace(make_model(options, torch.device("cpu")), None, options)
    assert ready == [(True, "inductor")]
    assert "blocks compiled: on: training.compile is set" in capsys.readouterr().err


def test_both_sides_of_a_step_compute_the_same() -> None:
    options = parsed([*TINY, "--architecture=qwen3"])
    # One side in a process of its own, as the benchmark runs both.
    here = measure({"side": "plain", "work": "step", "options": options})
    both = {"headrace": one_side("headrace", "step", options), "plain": here}
    for name in ("logprob_mean", "grad_norm"):
        assert both["headrace"][name] == pytest.approx(both["plain"][name], rel=1e-4)
    assert both["headrace"]["peak_bytes"] > 0
    for side in both.values():
        assert side["tokens"] == side["trained_tokens"] + 6 * 3
        assert figures(side)["tokens/s"] == [side["tokens"] / side["seconds"][0]]
        assert side["passes"] > 1


def test_shared_prompts_compute_the_same_as_separate_ones() -> None:
    batch = [*TINY, "--prompt=40", "--answers=3", "--against=unshared", "--tokens=400"]
    options = parsed(batch)
    shared, unshared = (
        measure({"side": side, "work": "step", "options": options})
        for side in part("step", options).sides
    )
    for name in ("logprob_mean", "grad_norm"):
        assert shared[name] == pytest.approx(unshared[name], rel=1e-5)
    assert shared["computed_tokens"] == unshared["computed_tokens"] - 2 * 2 * 40


OTHERS = ("pydantic", "structlog", "msgspec", "redis", "anyio", "rich", "fastapi", "aiohttp")
USED = (
    *("batch", "batch.cost", "batch.packing", "batch.prefixes", "errors", "model"),
    *("model.attention", "model.attention.context_parallel"),
    "model.attention.kernels",
    *("model.attention.packed", "model.attention.row_calls", "model.attention.row_layout"),
    "model.compiling",
    *("model.head", "model.head.logit_scale", "model.head.output_head"),
    *("model.head.topk_logprobs", "model.pass_weights", "model.passes"),
    *("model.passes.families", "model.passes.logprobs", "model.passes.mfu"),
)


def test_torch_and_transformers_are_all_it_needs() -> None:
    # Other dependencies of Headrace cannot be imported.
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({OTHERS!r}))\n"
        "import bench.learner.run, bench.learner.one_pass\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('services', 'learner')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.replace("'", '"'))
    assert modules == [
        "learner",
        *(f"learner.{name}" for name in USED),
        *(
            "services",
            "services.contracts",
            "services.contracts.experts",
            "services.estimate",
            "services.estimate.devices",
            "services.estimate.model_shape",
            "services.runtime",
            "services.runtime.quiet",
        ),
    ]
    copied = re.search(r"\(copy (.+)\)", (ROOT / "docs/benchmarks.md").read_text())
    assert copied is not None
    assert set(re.findall(r"`(\w+)/`", copied[1])) == {"bench", "learner", "services"}


def test_the_tests_for_a_gpu_need_no_more_than_that_either() -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({OTHERS!r}))\n"
        "import pytest\n"
        "sys.exit(pytest.main(['tests/gpu', '--collect-only', '-q', '-c', '/dev/null', "
        "'--rootdir=.', '--confcutdir=tests/gpu', '-p', 'no:cacheprovider']))"
    )
    environment = os.environ | {
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    for name in ("test_attention", "test_host_copies", "test_offload", "test_sleep"):
        assert f"tests/gpu/{name}.py::" in done.stdout
